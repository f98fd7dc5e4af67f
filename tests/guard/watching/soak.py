"""Healthy, drifting, stable and freezing runs in full: ``scripts/soak watch [PART ...]``.

Parts: ``healthy``, ``weights``, ``reference``, and forecasts on ``planted``, ``first``, ``second``, ``third``
and ``fourth``; without an argument, all. The rule of the forecast was tuned on the planted runs and on the
first two lists (``models.forecast_runs``), and measured once on the third and the fourth.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import torch
from benchmarks.models import forecast_runs, planted
from benchmarks.models.forecast_runs import FIRST, FOURTH, SECOND, THIRD, Runs
from benchmarks.models.planted import Drift

from tests.guard import healthy_runs
from tests.guard.watching import half_weights
from tests.guard.watching.watched import Training, Watched

AHEAD = 50


PLANTED = Runs(tuple(planted.DRIFTING), tuple(planted.STABLE))


def check_healthy() -> int:
    names, both = healthy_runs.NAMES, healthy_runs.BOTH
    wrong = [text for name in names if (text := healthy_runs.faults(name, both))]
    good = len(names) - len(wrong)
    print(f"healthy, watch and heal: {good} of {len(names)} bitwise, silent, no island")
    print("\n".join(wrong), end="\n" if wrong else "")
    return len(wrong)


def check_reference() -> int:
    """Check in FP32 that the runs of the lists are what they say."""
    lists = {"first": FIRST, "second": SECOND, "third": THIRD, "fourth": FOURTH}
    wrong = []
    for title, runs in lists.items():
        wrong += [f"{title}: {one.name}" for one in runs.drifting if not forecast_runs.drifts(one)]
        wrong += [f"{title}: {one.name}" for one in runs.stable if not forecast_runs.stays(one)]
    print(f"FP32 reference: {len(wrong)} runs are not what they say; {wrong}")
    return len(wrong)


def check_forecast(title: str, runs: Runs, *, late: int = 0, told: int = 0) -> int:
    """Watch drifting and stable runs; ``late`` and ``told`` are the misses that are known."""
    ahead: dict[str, int | None] = {}
    others: list[str] = []  # numbers that autocast keeps in FP32, or gradients that overflow first
    for one in runs.drifting:
        run = _watch(title, one)
        if run.overflowed is None:
            others.append(one.name)
        else:
            ahead[one.name] = None if run.warned is None else run.overflowed - run.warned
    missed = {name: steps for name, steps in ahead.items() if steps is None or steps < AHEAD}
    false = [
        f"{one.name} at step {run.warned}: {run.text.split(' if the trend')[0]}"
        for one in runs.stable
        if (run := _watch(title, one)).warned is not None
    ]
    in_time = len(ahead) - len(missed)
    print(f"{title}: {in_time} of {len(ahead)} announced {AHEAD} steps ahead; {missed}")
    if others:
        print(f"{title}: {len(others)} have no overflow of half in their forward pass; {others}")
    print(f"{title}: {len(false)} of {len(runs.stable)} stable runs announced; {false}", flush=True)
    return int(len(missed) > late) + int(len(false) > told)


def _watch(title: str, one: Drift) -> Watched:
    begun = time.perf_counter()
    training: Training = one.make(0)
    run = Watched(training)
    took = time.perf_counter() - begun
    print(
        f"  {title}: {one.name}: warned {run.warned}, overflow {run.overflowed} ({took:.0f} s)",
        file=sys.stderr,
        flush=True,
    )
    return run


def check_half_weights() -> int:
    wrong: list[str] = []
    for check, names in (
        (half_weights.missed, half_weights.FALLING),
        (half_weights.false_alarms, half_weights.FINE),
    ):
        some = [check(name, kind) for name in names for kind in half_weights.OPTIMIZERS]
        bad = [text for text in some if text]
        print(f"half weights, {check.__name__}: {len(bad)} of {len(some)}")
        wrong += bad
    print("\n".join(wrong), end="\n" if wrong else "")
    return len(wrong)


PARTS: dict[str, Callable[[], int]] = {
    "healthy": check_healthy,
    "weights": check_half_weights,
    "reference": check_reference,
    "planted": lambda: check_forecast("planted", PLANTED, told=1),
    "first": lambda: check_forecast("first", FIRST),
    "second": lambda: check_forecast("second", SECOND, late=3),
    "third": lambda: check_forecast("third", THIRD, late=1),
    "fourth": lambda: check_forecast("fourth", FOURTH),
}


def main(*names: str) -> int:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    wrong = 0
    for name in names or PARTS:
        begun = time.perf_counter()
        wrong += PARTS[name]()
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
