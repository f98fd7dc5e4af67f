"""Healthy, drifting, stable and freezing runs in full: ``scripts/soak watch [SEEDS]``.

The forecast was tuned on its own runs, on the planted ones (``tests.support.planted``) and on those that were
unseen before (``tests.support.forecast_runs.seen``). It was measured once on the last ones.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

import torch

from tests.guard import healthy_runs
from tests.guard.watching import drifts, half_weights
from tests.guard.watching.drifts import Training, Watched
from tests.support import forecast_runs, planted
from tests.support.planted import Drift

AHEAD = 50
Make = Callable[[int], Training]
Runs = tuple[dict[str, Make], dict[str, Make]]  # drifting, stable


def check_healthy() -> int:
    names, both = healthy_runs.NAMES, healthy_runs.BOTH
    wrong = [text for name in names if (text := healthy_runs.faults(name, both))]
    print(
        f"healthy, watch and heal: {len(names) - len(wrong)} of {len(names)} bitwise, silent, no island"
    )
    print("\n".join(wrong), end="\n" if wrong else "")
    return len(wrong)


def check_reference() -> int:
    """Check in FP32 that the unseen runs are what they say."""
    wrong = [one.name for one in forecast_runs.DRIFTING if not forecast_runs.drifts(one)]
    wrong += [one.name for one in forecast_runs.STABLE if not forecast_runs.stays(one)]
    print(f"FP32 reference: {len(wrong)} runs are not what they say; {wrong}")
    return len(wrong)


def check_drifts(
    title: str,
    runs: Runs,
    seeds: int,
    *,
    late: int = 0,
    told: int = 0,
) -> int:
    """Watch drifting and stable runs; ``late`` and ``told`` are the misses that are known."""
    drifting, stable = runs
    ahead: dict[str, int | None] = {}
    for name, make in drifting.items():
        for seed in range(seeds):
            run = Watched(make(seed))
            known = run.warned is not None and run.overflowed is not None
            ahead[f"{name} {seed}"] = run.overflowed - run.warned if known else None  # type: ignore[operator]
    missed = {name: steps for name, steps in ahead.items() if steps is None or steps < AHEAD}
    in_time = len(ahead) - len(missed)
    print(f"{title}: {in_time} of {len(ahead)} announced {AHEAD} steps ahead; {missed}")
    count = len(stable) * seeds
    false = [
        f"{name} {seed}: {run.text}"
        for name, make in stable.items()
        for seed in range(seeds)
        if (run := Watched(make(seed))).warned is not None
    ]
    print(f"{title}: {len(false)} of {count} stable runs announced; {false}")
    return int(len(missed) > late) + int(len(false) > told)


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


def by_name(drifting: Sequence[Drift], stable: Sequence[Drift]) -> Runs:
    return {one.name: one.make for one in drifting}, {one.name: one.make for one in stable}


def main(seeds: int = 3) -> int:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    wrong = check_healthy() + check_half_weights() + check_reference()
    wrong += check_drifts("own", (drifts.DRIFTING, drifts.STABLE), seeds, late=seeds)
    wrong += check_drifts("planted", by_name(planted.DRIFTING, planted.STABLE), 1, told=1)
    seen = by_name(forecast_runs.SEEN_DRIFTING, forecast_runs.SEEN_STABLE)
    wrong += check_drifts("seen", seen, 1, told=1)
    unseen = by_name(forecast_runs.DRIFTING, forecast_runs.STABLE)
    wrong += check_drifts("unseen", unseen, 1, late=2, told=3)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
