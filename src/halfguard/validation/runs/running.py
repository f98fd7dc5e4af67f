"""One run, in this process: train a workload with a setting, evaluate it, and record the results.

A run that raises, halts or diverges is a result like any other, with the reason in ``failure``: a study
exists to find candidates that fail. Only a mistake in the job's description (a missing function, a missing
metric) is raised, because it may make every run fail in the same way.
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
from halfguard.journal.run_environment import collect_environment
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.modes import full_precision
from halfguard.precision_names import Precision
from halfguard.records.study import Curve, RunResult
from halfguard.step.random_state import seeded
from halfguard.validation.runs.metrics import numeric_values, require_metric
from halfguard.validation.runs.pairing import SeededBatches, digest_of
from halfguard.validation.runs.stepping import Step, StepResult, make_step
from halfguard.validation.runs.task import Task
from halfguard.workload import Workload, final_loss, load
from halfguard.workload.memory import measure_step_memory
from halfguard.workload.user_error import describe_error

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_MEMORY_STEP = 2  # memory is measured here: by then an optimizer has created its state


def run(task: Task, attempt: int = 1) -> RunResult:
    """Run ``task``; ``attempt`` is recorded in the result."""
    assert task.job.entry is not None  # noqa: S101
    return run_workload(task, load(task.job.entry, task.seed), attempt)


def run_workload(task: Task, workload: Workload, attempt: int = 1) -> RunResult:
    """Train and evaluate a workload, which was made with the task's seed, as ``task`` says."""
    assert task.job.steps is not None  # noqa: S101
    started = time.perf_counter()
    initial_weights = digest_of(dict(workload.model.state_dict()))
    training = _Training(workload, make_step(workload, task.setting))
    stream = SeededBatches(workload.take(task.job.steps), task.seed)
    with seeded(task.seed):
        failure = training.run(stream)
        metrics: dict[str, float] = {}
        if failure is None:
            metrics, failure = _evaluate(task, workload, training.results)
    result = RunResult(
        candidate=task.candidate,
        precision=task.setting.precision,
        seed=task.seed,
        metrics=metrics,
        steps=len(training.results),
        skipped=sum(not one.applied for one in training.results),
        retried=sum(one.retried for one in training.results),
        curve=_curve(training.results),
        peak_bytes=training.peak,
        duration=time.perf_counter() - started,
        failure=failure,
        attempt=attempt,
        environment=collect_environment(workload.device),
        initial_weights=initial_weights,
        batch_order=stream.digest(),
    )
    return require_metric(result, task.job.metric)


class _Training:
    """The loop over the batches; its results are kept if it ends early."""

    def __init__(self, workload: Workload, step: Step) -> None:
        self.workload, self.step = workload, step
        self.results: list[StepResult] = []
        self.peak: int | None = None

    def run(self, stream: SeededBatches) -> str | None:
        """Train to the end of the batches; return the failure, or None."""
        try:
            for index, batch in enumerate(stream):
                step = self._measure_memory if index == _MEMORY_STEP else self.step
                if (result := step(batch)) is not None:
                    self.results.append(result)
        except TrainingHaltedError as error:
            return f"halted: {error.message}"
        except UsageError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may end in any way
            _raise_disk_error(error)
            return describe_error(error)
        return None

    def _measure_memory(self, batch: Any) -> StepResult | None:
        results: list[StepResult | None] = []
        memory = measure_step_memory(
            lambda: results.append(self.step(batch)),
            model=self.workload.model,
            optimizer=self.workload.optimizer,
            device=self.workload.device,
        )
        self.peak = memory.allocator_peak or memory.peak
        return results[0]


def _evaluate(
    task: Task, workload: Workload, results: list[StepResult]
) -> tuple[dict[str, float], str | None]:
    """Return the metrics, and the failure or None."""
    if workload.evaluate is None:
        metrics: Any = {"loss": final_loss([one.loss for one in results])}
    else:
        workload.model.eval()
        try:
            with torch.no_grad(), _evaluation_context(task, workload):
                metrics = workload.evaluate(workload.model)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
            _raise_disk_error(error)
            return {}, f"evaluation: {describe_error(error)}"
    if metrics is None:  # a function that forgot to return
        return {}, None
    return _numbers(metrics if isinstance(metrics, Mapping) else {task.job.metric: metrics}), None


def _evaluation_context(task: Task, workload: Workload) -> AbstractContextManager[Any]:
    if task.job.evaluation == "fp32":
        workload.model.float()
        return full_precision(workload.device.type)
    return autocast_like_cuda(Precision(task.setting.precision), workload.device)


def _numbers(metrics: Mapping[Any, Any]) -> dict[str, float]:
    return numeric_values(
        {
            name: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            for name, value in metrics.items()
        }
    )


def _curve(results: list[StepResult]) -> Curve:
    return Curve(
        steps=tuple(range(len(results))),
        loss=tuple(one.loss for one in results),
        grad_norm=tuple(one.grad_norm for one in results),
        scale=tuple(one.scale for one in results),
    )


def _raise_disk_error(error: BaseException) -> None:
    """Raise the error of a full or broken disk: it is not the candidate's failure, and can be repaired."""
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        raise error
