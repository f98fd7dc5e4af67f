"""``DRIFTING``: runs that overflow in FP16 between step 150 and 600; ``STABLE``: runs that never do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tests.support.planted import growing
from tests.support.planted.base import Drift
from tests.support.planted.loops import first_overflow


@dataclass(frozen=True)
class Drifting(Drift):
    """A run in which FP16 overflows at some step that depends on the seed."""

    def first_overflow(self, seed: int) -> tuple[int, str]:
        """Train in FP16; return the step and the module of the first output that is not finite."""
        found = first_overflow(self, seed)
        if found is None:
            raise AssertionError(f"{self.name} with seed {seed} did not overflow.")
        return found


DRIFTING: tuple[Drifting, ...] = (
    Drifting("critic without penalty", partial(growing.critic, lr=3e-3)),
    Drifting("critic in a hurry", partial(growing.critic, lr=5e-3)),
    Drifting(
        "value overestimation", partial(growing.q_learning, discount=1.5, lr=3e-2, reward=300.0)
    ),
    Drifting("ranking without margin", partial(growing.ranking_scores, lr=2e-2)),
    Drifting("price in cents", partial(growing.raw_target, target=1e5, lr=0.05)),
    Drifting("oscillating least squares", partial(growing.overshoot, lr=4.08)),
)

STABLE: tuple[Drift, ...] = (
    Drift("critic with decay", partial(growing.critic, lr=3e-3, decay=10.0)),
    Drift("discounted values", partial(growing.q_learning, discount=0.9, lr=3e-2, reward=3000.0)),
    Drift("ranking with margin", partial(growing.ranking_scores, lr=3e-2, margin=5000.0)),
    Drift("price in thousands", partial(growing.raw_target, target=2e4, lr=0.05)),
    Drift("residual stream with norms", partial(growing.residual_stream, lr=0.03, norm=True)),
    Drift("damped least squares", partial(growing.overshoot, lr=3.9)),
)
