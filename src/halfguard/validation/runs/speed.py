"""The speed of a candidate: its steps and the baseline's in turn, and the time ratio of each round."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from halfguard.records.study import RunResult, Speed
from halfguard.step.random_state import seeded
from halfguard.validation.runs.stepping import make_step
from halfguard.validation.runs.task import Setting, Task
from halfguard.workload import load
from halfguard.workload.timing import Spread, time_interleaved

ROUNDS, WARM_UP = 30, 5
_PRELOADED_BATCHES = 8  # the time of a step must not include loading data


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
