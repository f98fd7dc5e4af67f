"""The joint investigation of a bad step: which rank, which batch, which gradients.

A healthy step sends one small sum. If the sum shows a fault, every rank knows it at the same step, so all of
them can exchange more: which rank had the non-finite loss, whether its batch was usable, which parameters
have the largest norms if they are sharded, which rank holds different bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from halfguard.dist.collectives import all_gather_numbers, all_gather_object, world_size
from halfguard.guard.agreement.desync import Divergence, Replicas
from halfguard.guard.gradients import Gradients
from halfguard.guard.step_batches import StepBatches
from halfguard.records import Cause

_REPORTED = 5  # parameters


@dataclass(frozen=True)
class FaultReport:
    """The findings about a bad step; the same on every rank."""

    culprits: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # on which it arose; empty if unknown, or if there is only one
    batch_ok: bool = True
    divergence: Divergence | None = None

    @property
    def source(self) -> int | None:
        """The rank that the others could copy from."""
        return None if self.divergence is None else self.divergence.source


def investigate(
    cause: Cause, batches: StepBatches, gradients: Gradients, replicas: Replicas, ignore_index: int
) -> FaultReport:
    """Investigate a step that has ``cause``. This reads the device, and every rank must call it."""
    if cause is Cause.DESYNC:
        divergence = replicas.find_divergence(gradients.total.device)
        return FaultReport(divergence.tensors, divergence.ranks, divergence=divergence)
    culprits = worst_parameters(gradients, sharded=not replicas.complete)
    if cause is not Cause.FORWARD_OVERFLOW:
        return FaultReport(culprits)
    mine = [math.isfinite(batches.local_loss), batches.batches_ok(ignore_index)]
    per_rank = all_gather_numbers([float(answer) for answer in mine], gradients.total.device)
    bad = tuple(rank for rank, (finite, _) in enumerate(per_rank) if not finite)
    usable = all(per_rank[rank][1] for rank in bad)
    return FaultReport(culprits, bad if world_size() > 1 else (), batch_ok=usable)


def worst_parameters(gradients: Gradients, *, sharded: bool = False) -> tuple[str, ...]:
    """Return the names of the worst parameters; if they are ``sharded``, every rank must call this."""
    worst = gradients.worst(_REPORTED)
    if sharded:
        worst = _merged(pair for theirs in all_gather_object(worst) for pair in theirs)
    bad = [name for name, norm in worst if not math.isfinite(norm)]
    return tuple((bad or [name for name, _ in worst])[:_REPORTED])


def _merged(worst: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    norms: dict[str, float] = {}
    for name, norm in worst:
        norms[name] = max(norms.get(name, 0.0), norm if math.isfinite(norm) else math.inf)
    return sorted(norms.items(), key=lambda pair: -pair[1])
