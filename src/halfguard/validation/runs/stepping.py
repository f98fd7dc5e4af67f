"""One training step of a candidate, bare or with the guard, and its speed.

The bare step is the plain one of ``workload``, with torch's own GradScaler: guarded candidates are compared
with it. On a CPU both run under CUDA's autocast rules, since the study is about training on a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.guard.guard import Guard
from halfguard.precision.emulation import autocast_like_cuda, hold_like_cuda
from halfguard.precision_names import Precision
from halfguard.records import Action
from halfguard.records.cost import Spread
from halfguard.records.study import RunResult, Speed
from halfguard.step.random_state import seeded
from halfguard.trials.plans import apply_plan
from halfguard.validation.runs.task import Setting, Task
from halfguard.workload import TrainingStep, Workload, load
from halfguard.workload.timing import time_interleaved

ROUNDS, WARM_UP = 30, 5
_PRELOADED_BATCHES = 8  # the time of a step must not include loading data


@dataclass(frozen=True)
class StepResult:
    """The numbers of one attempted update."""

    loss: float
    grad_norm: float
    scale: float
    applied: bool
    retried: bool = False


Step = Callable[[Any], StepResult | None]


def make_step(workload: Workload, setting: Setting) -> Step:
    """Prepare the workload for ``setting`` and return the function that trains it on one batch."""
    precision = Precision(setting.precision)
    if setting.plan is not None:
        apply_plan(workload.model, setting.plan)
    workload.store_weights_as(precision)
    workload.model.train()
    if setting.guard is None:
        return BareStep(workload, precision)
    return GuardedStep(workload, precision, setting.guard)


class BareStep:
    """The plain training step, with the norm of its unscaled gradients."""

    def __init__(self, workload: Workload, precision: Precision) -> None:
        self.step = TrainingStep(workload, precision)

    def __call__(self, batch: Any) -> StepResult:
        """Train on one batch."""
        step, scaler = self.step, self.step.scaler
        loss = step.forward(batch)
        step.backward(loss)
        step.unscale()
        scale, grads = scaler.get_scale(), step.gradients()
        finite = not scaler.is_enabled() or all(bool(g.isfinite().all()) for g in grads)
        norm = nn.utils.get_total_norm(grads).item() if grads else 0.0
        step.update()
        return StepResult(loss.item(), norm, scale, applied=finite)


class GuardedStep:
    """The guard's step function."""

    def __init__(self, workload: Workload, precision: Precision, config: dict[str, Any]) -> None:
        self.workload, self.precision = workload, precision
        if config.get("clip") is None and workload.clip_norm is not None:
            config = config | {"clip": {"max_norm": workload.clip_norm}}
        self.guard = Guard(workload.model, workload.optimizer, config)
        self._hold = hold_like_cuda(precision, workload.device)

    def __call__(self, batch: Any) -> StepResult | None:
        """Train on one batch; return None while the step accumulates further batches."""
        outcome = self.guard.step(self._loss, batch)
        if outcome.action is Action.ACCUMULATE:
            return None
        scale = outcome.scale if self.guard.scaler.is_enabled() else 1.0
        retried = outcome.action is Action.RETRY
        return StepResult(outcome.loss, outcome.grad_norm, scale, outcome.applied, retried)

    def _loss(self, _: nn.Module, batch: Any) -> Tensor:
        # The guard repeats a step in FP32 with autocast off: it must stay off.
        device = self.workload.device
        on = torch.is_autocast_enabled(device.type)
        with autocast_like_cuda(self.precision, device) if on else nullcontext():
            return self.workload.loss_of(batch)


def measure_speed(task: Task) -> Speed:
    """Time ``task``'s setting against ``task.against``."""
    assert task.against is not None  # noqa: S101
    with seeded(task.seed):
        settings = {"candidate": task.setting, "baseline": task.against}
        steps = {name: _make_timed_step(task, setting) for name, setting in settings.items()}
        seconds = time_interleaved(steps, rounds=ROUNDS, warmup=WARM_UP)
    return _speed(task.candidate, seconds["baseline"], seconds["candidate"])


def speed_of_runs(candidate: str, baseline: str, runs: tuple[RunResult, ...]) -> Speed | None:
    """Return the speed from whole runs, for commands whose steps cannot be timed; None without a pair."""
    seconds = {
        name: {run.seed: run.duration for run in runs if run.candidate == name and not run.failure}
        for name in (candidate, baseline)
    }
    seeds = sorted(seconds[candidate].keys() & seconds[baseline].keys())
    if not seeds:
        return None
    base, own = ([seconds[name][seed] for seed in seeds] for name in (baseline, candidate))
    return _speed(candidate, base, own)


def _make_timed_step(task: Task, setting: Setting) -> Callable[[], object]:
    assert task.job.entry is not None  # noqa: S101
    workload = load(task.job.entry, task.seed)
    batches = itertools.cycle(list(workload.take(_PRELOADED_BATCHES)))
    step = make_step(workload, setting)
    return lambda: step(next(batches))


def _speed(candidate: str, baseline_seconds: list[float], seconds: list[float]) -> Speed:
    pairs = [base / own for base, own in zip(baseline_seconds, seconds, strict=True)]
    spread = Spread.of(pairs)
    return Speed(
        candidate=candidate, ratio=spread.median, low=spread.low, high=spread.high, pairs=len(pairs)
    )
