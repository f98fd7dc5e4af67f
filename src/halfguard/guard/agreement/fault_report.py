"""What ranks tell each other once a step has gone wrong: whose loss, whose batch, whose gradients.

A healthy step sends one small sum. When that says that something is wrong, every rank knows it at the same
step, so that all of them can afford to ask further: who had the loss that is not finite, was that batch any
good, which parameters stand out where they are spread over ranks, who holds other bits than the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from halfguard.dist.collectives import all_gather_numbers, all_gather_object, world_size
from halfguard.guard.agreement.desync import Divergence, Replicas
from halfguard.guard.gradients import Gradients
from halfguard.guard.step_batches import Window
from halfguard.records import Cause

_BLAMED = 5  # parameters that a report names


@dataclass(frozen=True)
class Inquest:
    """What came to light about an unusual step; the same on every rank."""

    culprits: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # where it arose; empty if that is not known, or there is but one
    batch_ok: bool = True
    divergence: Divergence | None = None

    @property
    def source(self) -> int | None:
        """The rank whose bits the others could take over."""
        return None if self.divergence is None else self.divergence.source


def inquire(
    cause: Cause, window: Window, gradients: Gradients, replicas: Replicas, ignore_index: int
) -> Inquest:
    """Look into a step that has ``cause``. This reads the device, and every rank must ask."""
    if cause is Cause.DESYNC:
        divergence = replicas.inquest(gradients.total.device)
        return Inquest(divergence.tensors, divergence.ranks, divergence=divergence)
    culprits = blamed(gradients, spread=not replicas.complete)
    if cause is not Cause.FORWARD_OVERFLOW:
        return Inquest(culprits)
    mine = [math.isfinite(window.own_loss), window.is_sound(ignore_index)]
    testimony = all_gather_numbers([float(answer) for answer in mine], gradients.total.device)
    bad = tuple(rank for rank, (finite, _) in enumerate(testimony) if not finite)
    sound = all(testimony[rank][1] for rank in bad)
    return Inquest(culprits, bad if world_size() > 1 else (), batch_ok=sound)


def blamed(gradients: Gradients, *, spread: bool = False) -> tuple[str, ...]:
    """Names of the parameters to blame; where they are ``spread`` over ranks, every rank must ask."""
    worst = gradients.worst(_BLAMED)
    if spread:
        worst = _merged(pair for words in all_gather_object(worst) for pair in words)
    sick = [name for name, norm in worst if not math.isfinite(norm)]
    return tuple((sick or [name for name, _ in worst])[:_BLAMED])


def _merged(worst: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    norms: dict[str, float] = {}
    for name, norm in worst:
        norms[name] = max(norms.get(name, 0.0), norm if math.isfinite(norm) else math.inf)
    return sorted(norms.items(), key=lambda pair: -pair[1])
