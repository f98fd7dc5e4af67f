"""How fast a candidate steps: its steps and the baseline's in turns, and the ratio within each turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from halfguard.records.study import RunResult, Speed
from halfguard.validation.runs.stepping import make_step
from halfguard.validation.runs.task import Setting, Task
from halfguard.workload import load, seeded
from halfguard.workload.timing import Spread, interleaved

ROUNDS, WARM_UP = 30, 5
_KEPT = 8  # batches made beforehand: a step is timed, not the reading of data


def measure(task: Task) -> Speed:
    """Time ``task``'s setting against the one that it names."""
    assert task.against is not None  # noqa: S101
    with seeded(task.seed):
        steps = {"mine": _stepping(task, task.setting), "theirs": _stepping(task, task.against)}
        seconds = interleaved(steps, rounds=ROUNDS, warmup=WARM_UP)
    return _speed(task.candidate, seconds["theirs"], seconds["mine"])


def speed_of_runs(candidate: str, baseline: str, runs: tuple[RunResult, ...]) -> Speed | None:
    """From whole runs, for commands, whose steps are not ours to time; None without a pair."""
    seconds = {
        name: {run.seed: run.duration for run in runs if run.candidate == name and not run.failure}
        for name in (candidate, baseline)
    }
    seeds = sorted(seconds[candidate].keys() & seconds[baseline].keys())
    if not seeds:
        return None
    theirs, mine = ([seconds[name][seed] for seed in seeds] for name in (baseline, candidate))
    return _speed(candidate, theirs, mine)


def _stepping(task: Task, setting: Setting) -> Callable[[], object]:
    assert task.job.entry is not None  # noqa: S101
    workload = load(task.job.entry, task.seed)
    batches = itertools.cycle(list(workload.take(_KEPT)))
    step = make_step(workload, setting)
    return lambda: step(next(batches))


def _speed(candidate: str, theirs: list[float], mine: list[float]) -> Speed:
    pairs = [base / own for base, own in zip(theirs, mine, strict=True)]
    spread = Spread.of(pairs)
    return Speed(
        candidate=candidate, ratio=spread.median, low=spread.low, high=spread.high, pairs=len(pairs)
    )
