"""Healthy, drifting, stable and freezing runs in full: ``scripts/soak watch [SEEDS]``.

With the planted material (``tests.support.planted``), its drifting and stable runs are measured as well:
nothing was tuned on them.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

from tests.guard import healthy_runs
from tests.guard.watching import drifts, half_weights
from tests.guard.watching.drifts import Training, Watched

AHEAD = 50
Make = Callable[[int], Training]


def check_healthy() -> int:
    names, both = healthy_runs.NAMES, healthy_runs.BOTH
    wrong = [text for name in names if (text := healthy_runs.faults(name, both))]
    print(
        f"healthy, watch and heal: {len(names) - len(wrong)} of {len(names)} bitwise, silent, no island"
    )
    print("\n".join(wrong), end="\n" if wrong else "")
    return len(wrong)


def check_drifts(title: str, drifting: dict[str, Make], stable: dict[str, Make], seeds: int) -> int:
    ahead: dict[str, int | None] = {}
    for name, make in drifting.items():
        for seed in range(seeds):
            run = Watched(make(seed))
            known = run.warned is not None and run.overflowed is not None
            ahead[f"{name} {seed}"] = run.overflowed - run.warned if known else None  # type: ignore[operator]
    late = {name: steps for name, steps in ahead.items() if steps is None or steps < AHEAD}
    print(
        f"{title}: {len(ahead) - len(late)} of {len(ahead)} announced {AHEAD} steps ahead; {late}"
    )
    runs = [f"{name} {seed}" for name in stable for seed in range(seeds)]
    told = [
        f"{name} {seed}: {run.text}"
        for name, make in stable.items()
        for seed in range(seeds)
        if (run := Watched(make(seed))).warned is not None
    ]
    print(f"{title}: {len(told)} of {len(runs)} stable runs announced; {told}")
    return (len(late) > 0.05 * len(ahead)) + len(told)


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


def planted_runs() -> tuple[dict[str, Make], dict[str, Make]] | None:
    try:
        planted: Any = importlib.import_module("tests.support.planted")
    except ModuleNotFoundError:
        return None
    by_name = [{one.name: one.make for one in runs} for runs in (planted.DRIFTING, planted.STABLE)]
    return by_name[0], by_name[1]


def main(seeds: int = 3) -> int:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    wrong = check_healthy() + check_half_weights()
    wrong += check_drifts("own", drifts.DRIFTING, drifts.STABLE, seeds)
    planted = planted_runs()
    if planted is not None:
        wrong += check_drifts("planted", *planted, 1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
