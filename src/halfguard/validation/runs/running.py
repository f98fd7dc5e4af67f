"""One run, in this process: train a workload as a setting says, evaluate it, and tell everything.

A run that raises, halts or diverges is a result like any other, with the reason in ``failure``: that a
candidate does not survive is what a study is there to find. Only a mistake in the job's description
(no such function, no such metric) is raised, because it may make every run fail alike.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from halfguard.errors import TrainingHaltedError, UsageError
from halfguard.journal.run_environment import environment
from halfguard.precision.emulation import as_on_cuda
from halfguard.precision.modes import Precision, full_precision
from halfguard.records.study import Curve, RunResult
from halfguard.validation.runs.metrics import numbers_in, required
from halfguard.validation.runs.pairing import OwnStream, digest_of
from halfguard.validation.runs.stepping import Seen, Step, make_step
from halfguard.validation.runs.task import Task
from halfguard.workload import Workload, final_loss, load, seeded
from halfguard.workload.memory import step_memory
from halfguard.workload.user_error import told

_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_MEASURED = 2  # by then an optimizer has made its state


def run(task: Task, attempt: int = 1) -> RunResult:
    """Carry out ``task``; ``attempt`` is told in the result."""
    assert task.job.entry is not None  # noqa: S101
    assert task.job.steps is not None  # noqa: S101
    started = time.perf_counter()
    workload = load(task.job.entry, task.seed)
    initial_weights = digest_of(dict(workload.model.state_dict()))
    training = _Training(workload, make_step(workload, task.setting))
    stream = OwnStream(workload.take(task.job.steps), task.seed)
    with seeded(task.seed):
        failure = training.go(stream)
        metrics, flaw = _evaluate(task, workload, training.seen) if failure is None else ({}, None)
    result = RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics=metrics,
        steps=len(training.seen),
        skipped=sum(not seen.applied for seen in training.seen),
        retried=sum(seen.retried for seen in training.seen),
        curve=_curve(training.seen),
        peak_bytes=training.peak,
        duration=time.perf_counter() - started,
        failure=failure or flaw,
        attempt=attempt,
        environment=environment(workload.device),
        initial_weights=initial_weights,
        batch_order=stream.digest(),
    )
    return required(result, task.job.metric)


class _Training:
    """The loop; keeps what was seen also when it ends early."""

    def __init__(self, workload: Workload, step: Step) -> None:
        self.workload, self.step = workload, step
        self.seen: list[Seen] = []
        self.peak: int | None = None

    def go(self, stream: OwnStream) -> str | None:
        """Train to the end of the batches; returns why it did not."""
        try:
            for index, batch in enumerate(stream):
                seen = self._measured(batch) if index == _MEASURED else self.step(batch)
                if seen is not None:
                    self.seen.append(seen)
        except TrainingHaltedError as error:
            return f"halted: {error.message}"
        except UsageError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may end in any way
            _refuse_machine_failure(error)
            return told(error)
        return None

    def _measured(self, batch: Any) -> Seen | None:
        kept: list[Seen | None] = []
        memory = step_memory(
            lambda: kept.append(self.step(batch)),
            model=self.workload.model,
            optimizer=self.workload.optimizer,
            device=self.workload.device,
        )
        self.peak = memory.allocator_peak or memory.peak
        return kept[0]


def _evaluate(
    task: Task, workload: Workload, seen: list[Seen]
) -> tuple[dict[str, float], str | None]:
    """The metrics, and why there are none."""
    if workload.evaluate is None:
        metrics: Any = {"loss": final_loss([one.loss for one in seen])}
    else:
        workload.model.eval()
        try:
            with torch.no_grad(), _evaluation_context(task, workload):
                metrics = workload.evaluate(workload.model)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            _refuse_machine_failure(error)
            return {}, f"evaluation: {told(error)}"
    if metrics is None:  # a function that forgot to return
        return {}, None
    return _numbers(metrics if isinstance(metrics, Mapping) else {task.job.metric: metrics}), None


def _evaluation_context(task: Task, workload: Workload) -> AbstractContextManager[Any]:
    if task.job.evaluation == "fp32":
        workload.model.float()
        return full_precision(workload.device.type)
    return as_on_cuda(Precision(task.setting.precision), workload.device)


def _numbers(metrics: Mapping[Any, Any]) -> dict[str, float]:
    return numbers_in(
        {
            name: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            for name, value in metrics.items()
        }
    )


def _curve(seen: list[Seen]) -> Curve:
    return Curve(
        steps=tuple(range(len(seen))),
        loss=tuple(one.loss for one in seen),
        grad_norm=tuple(one.grad_norm for one in seen),
        scale=tuple(one.scale for one in seen),
    )


def _refuse_machine_failure(error: BaseException) -> None:
    """Let a full or broken disk end the process: it says nothing about the candidate, and may be mended."""
    if isinstance(error, OSError) and error.errno in _MACHINE:
        raise error
