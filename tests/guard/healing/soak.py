"""Heal jobs that overflow in every n-th batch: retries before and after, and the loss beside FP32's spread.

    scripts/soak heal [SEEDS] [STEPS]

A healed run passes if its forward passes overflow no more once the last island is made, and if its final
loss differs from that of FP32 with the same seed by no more than FP32's seeds differ among themselves.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import halfguard as hg
from halfguard.guard.guard import Guard
from halfguard.records import Cause
from halfguard.step.random_state import seeded
from tests.guard.healing.jobs import HEAL, RETRY

LAST = 40  # steps that the final loss is the mean of


@dataclass(frozen=True)
class Run:
    """One training run: its bad steps, when it was healed, and how it ended."""

    bad: tuple[tuple[int, Cause], ...]
    islands: tuple[str, ...]
    modules: tuple[str, ...]  # of the operations that failed
    healed: int  # the step after which the last island was made; -1 if none was
    loss: float

    @property
    def failed_forward(self) -> int:
        """Steps whose forward pass overflowed."""
        return sum(cause is Cause.FORWARD_OVERFLOW for _, cause in self.bad)

    @property
    def failed_after(self) -> int:
        """The same, after the healing."""
        return sum(
            cause is Cause.FORWARD_OVERFLOW and step >= self.healed for step, cause in self.bad
        )


def train(job: Callable[[int], hg.Workload], seed: int, config: dict[str, Any], steps: int) -> Run:
    with seeded(seed):
        work = job(seed)
        guard = Guard(work.model, work.optimizer, config)
        bad, losses = [], []
        for index, batch in enumerate(work.take(steps)):
            outcome = guard.step(work.loss, batch)
            losses.append(outcome.loss)
            if outcome.cause is not None:
                bad.append((index, outcome.cause))
        memory = (guard.state_dict()["healing"] or {}).get("healed", [])
    names = tuple(str(one["island"].get("module", one["island"].get("line"))) for one in memory)
    modules = tuple(one["producer"].split(" ")[0] for one in memory)
    healed = max((one["since"] for one in memory), default=-1)
    return Run(tuple(bad), names, modules, healed, mean(losses[-LAST:]))


def main() -> None:
    from benchmarks.models.planted import PERIODIC

    logging.getLogger("halfguard").setLevel(logging.ERROR)
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    failed = 0
    print(f"{'job':<18}{'every':>6}{'retried':>9}{'healed':>8}{'after':>7}  islands, loss, FP32")
    for planted in PERIODIC:
        wide = [
            train(planted.job, seed, {"precision": "fp32"}, steps).loss for seed in range(seeds)
        ]
        for seed in range(min(seeds, 3)):
            retried = train(planted.job, seed, RETRY, steps)
            healed = train(planted.job, seed, HEAL, steps)
            # The seed makes the data too, so a run is compared with FP32 of the same seed.
            within = abs(healed.loss - wide[seed]) <= max(wide) - min(wide)
            good = healed.islands and not healed.failed_after and within
            failed += not good
            print(
                f"{planted.name:<18}{planted.every:>6}{retried.failed_forward:>9}"
                f"{healed.failed_forward:>8}{healed.failed_after:>7}  {','.join(healed.islands)}, "
                f"{healed.loss:.5g} (FP32 {wide[seed]:.5g}, {min(wide):.5g} to {max(wide):.5g})"
                f"{'' if good else '  FAILED'}",
                flush=True,
            )
    print(f"{failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
