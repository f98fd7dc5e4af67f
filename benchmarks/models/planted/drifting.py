"""``DRIFTING``: runs that overflow in FP16 between step 150 and 600; ``STABLE``: runs that never do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.models.planted import growing, growing_more
from benchmarks.models.planted.base import Drift
from benchmarks.models.planted.loops import first_overflow


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
    Drifting("value overestimation", partial(growing.q_learning, discount=1.5, lr=3e-2)),
    Drifting("values that run away", partial(growing.q_learning, discount=1.5, lr=4e-2)),
    Drifting("ranking without margin", partial(growing.ranking_scores, lr=2e-2)),
    Drifting("ranking at a high rate", partial(growing.ranking_scores, lr=3e-2)),
    Drifting("price in cents", partial(growing.raw_target, target=1e5, lr=0.05)),
    Drifting("price in pence", partial(growing.raw_target, target=2e5, lr=0.03)),
    Drifting("price in yen", partial(growing.raw_target, target=3e5, lr=0.02)),
    Drifting("oscillating least squares", partial(growing.overshoot, lr=4.08)),
    Drifting("slowly oscillating least squares", partial(growing.overshoot, lr=4.05)),
    Drifting("quickly oscillating least squares", partial(growing.overshoot, lr=4.1)),
    Drifting("confident stream", partial(growing_more.margin_stream, lr=4e-3)),
    Drifting("slowly confident stream", partial(growing_more.margin_stream, lr=3e-3)),
    Drifting("free temperature", partial(growing_more.contrastive_scale, lr=2e-2, linear=True)),
    Drifting("slow temperature", partial(growing_more.contrastive_scale, lr=1.5e-2, linear=True)),
    Drifting("recurrent gain", partial(growing_more.recurrent_gain, lr=5e-4, target=5e5)),
    Drifting("energy without scale", partial(growing_more.energy_model, lr=1.5e-2)),
    Drifting("totals of a graph", partial(growing_more.graph_totals, lr=5e-3, target=1.5e5)),
    Drifting("sums of a graph", partial(growing_more.graph_totals, lr=1e-2, target=1e5)),
)

STABLE: tuple[Drift, ...] = (
    Drift("critic with decay", partial(growing.critic, lr=3e-3, decay=10.0)),
    Drift("discounted values", partial(growing.q_learning, discount=0.9, lr=3e-2, reward=3e3)),
    Drift("patient values", partial(growing.q_learning, discount=0.95, lr=3e-2, reward=1500.0)),
    Drift("ranking with margin", partial(growing.ranking_scores, lr=3e-2, margin=5000.0)),
    Drift("price in thousands", partial(growing.raw_target, target=2e4, lr=0.05)),
    Drift("noisy price", partial(growing.raw_target, target=3e4, lr=0.02, spread=0.3)),
    Drift("residual stream with norms", partial(growing.residual_stream, lr=0.03, norm=True)),
    Drift("residual stream at a low rate", partial(growing.residual_stream, lr=0.01)),
    Drift("damped least squares", partial(growing.overshoot, lr=3.9)),
    Drift("loud least squares", partial(growing.overshoot, lr=3.5e-4, scale=100.0)),
    Drift("stream with margin", partial(growing_more.margin_stream, lr=3e-3, margin=5000.0)),
    Drift(
        "limited temperature",
        partial(growing_more.contrastive_scale, lr=2e-2, linear=True, limit=100.0),
    ),
    Drift("temperature by cross entropy", partial(growing_more.contrastive_scale, lr=3e-2)),
    Drift("recurrent sum", partial(growing_more.recurrent_gain, lr=1e-3, target=3e4)),
    Drift("graph in thousands", partial(growing_more.graph_totals, lr=1e-2, target=5e3)),
    Drift("large constant", partial(growing_more.large_constant, gain=3000.0)),
    Drift("very large constant", partial(growing_more.large_constant, gain=12000.0)),
    Drift("varying loudness", partial(growing_more.large_constant, gain=1000.0, noise=0.5)),
    Drift("energy with a penalty", partial(growing_more.energy_model, lr=1e-2, penalty=1e-3)),
    Drift("code with a power limit", partial(growing_more.noisy_code, lr=1e-2, power=1e-4)),
)
