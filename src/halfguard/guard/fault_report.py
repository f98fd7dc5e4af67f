"""The joint investigation of a bad step: which rank, which batch, which weights, which gradients.

A healthy step sends one small sum. If the sum shows a fault, every rank knows it at the same step, so all of
them can exchange more: which rank had the non-finite loss, whether its batch was usable, whether weights were
bad before the step, which parameters have the largest norms if they are sharded, which rank holds different
bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn

from halfguard.dist.collectives import all_gather_numbers, all_gather_object, world_size
from halfguard.guard.batch_checks import BatchFault, find_batch_fault
from halfguard.guard.consensus import Gradients
from halfguard.guard.desync import Divergence, Replicas
from halfguard.guard.step_batches import StepBatches
from halfguard.numerics.finite import find_nonfinite
from halfguard.records import Cause
from halfguard.step.holders import Saved, text_of_name

_REPORTED = 5  # parameters
_ENTRIES = 100  # of a container that are checked
_FAULTS = (None, *BatchFault)  # as numbers, for other ranks


@dataclass(frozen=True)
class BadWeight:
    """The first parameter that was not finite before the step, or other state of the model with NaN."""

    name: str
    value: str  # "NaN" or "Inf"
    is_state: bool = False  # a buffer, a hidden state, a memory


@dataclass(frozen=True)
class FaultReport:
    """The findings about a bad step; the same on every rank."""

    culprits: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # on which it arose; empty if unknown, or if there is only one
    bad_weight: BadWeight | None = None
    batch_fault: BatchFault | None = None
    batch_known: bool = False  # it was given to the guard, and checked
    changed_in_place: bool = False  # by a loss function, on any rank: the step cannot be repeated
    repeatable: bool = True  # every rank knows how to compute its loss again
    divergence: Divergence | None = None


def investigate(
    cause: Cause,
    batches: StepBatches,
    gradients: Gradients,
    replicas: Replicas,
    model: nn.Module,
    state: Saved = (),
) -> FaultReport:
    """Investigate a step that has ``cause``. This reads the device, and every rank must call it.

    ``state`` is what was saved before the step and has been put back.
    """
    device = gradients.total.device
    if cause is Cause.DESYNC:
        divergence = replicas.find_divergence(device)
        return FaultReport(divergence.tensors, divergence.ranks, divergence=divergence)
    report = FaultReport(worst_parameters(gradients, sharded=not replicas.complete))
    if cause not in {Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW}:
        return report
    # A finite loss shows that infinite weights, such as a mask, are meant.
    nan_only = cause is Cause.GRADIENT_OVERFLOW
    bad_weight = find_bad_weight(model, frozenset(gradients.names), nan_only=nan_only)
    if bad_weight is None and not nan_only:
        bad_weight = find_bad_state(state)
    fault = _batch_fault(batches) if cause is Cause.FORWARD_OVERFLOW else None
    finite = cause is Cause.GRADIENT_OVERFLOW or math.isfinite(batches.local_loss)
    known = all(micro.batch is not None for micro in batches.micro_batches)
    mine = [finite, bad_weight is None, _FAULTS.index(fault), known]
    mine += [batches.changed_in_place, batches.repeatable]
    per_rank = all_gather_numbers([float(answer) for answer in mine], device)
    if not all(weights_ok for _, weights_ok, *_ in per_rank):
        bad_weight = next(filter(None, all_gather_object(bad_weight)))
    bad = [rank for rank, (loss_finite, *_) in enumerate(per_rank) if not loss_finite]
    faults = [_FAULTS[int(per_rank[rank][2])] for rank in bad]
    return replace(
        report,
        ranks=tuple(bad) if world_size() > 1 else (),
        bad_weight=bad_weight,
        batch_fault=next(filter(None, faults), None),
        batch_known=bool(bad) and all(per_rank[rank][3] for rank in bad),
        changed_in_place=any(changed for *_, changed, _ in per_rank),
        repeatable=all(repeatable for *_, repeatable in per_rank),
    )


def batches_ok(batches: StepBatches) -> bool:
    """Return whether this rank's batches are usable. This reads the device."""
    return _batch_fault(batches) is None


def _batch_fault(batches: StepBatches) -> BatchFault | None:
    loss = batches.local_loss
    faults = (find_batch_fault(m.batch, loss) for m in batches.micro_batches)
    return next(filter(None, faults), None)


@torch.no_grad()
def find_bad_weight(
    model: nn.Module, used: frozenset[str], *, nan_only: bool = False
) -> BadWeight | None:
    """Return the first parameter of this rank that is not finite. This reads the device.

    A frozen one must hold NaN: a constant that is stored as a parameter, such as a mask, may be infinite. A
    trainable one must be among the ``used``, those with a gradient: others did not take part.
    """
    named = [
        (name, p) for name, p in model.named_parameters() if name in used or not p.requires_grad
    ]
    positions, codes = find_nonfinite(p for _, p in named)
    for position, code in sorted(zip(positions, codes.tolist(), strict=True)):
        name, parameter = named[position]
        if code == 1 or (code and parameter.requires_grad and not nan_only):
            return BadWeight(name, "NaN" if code == 1 else "Inf")
    return None


@torch.no_grad()
def find_bad_state(state: Saved) -> BadWeight | None:
    """Return the first tensor with NaN among buffers, hidden states and memories. This reads the device."""
    named = [
        ((holder.name, holder.style, key), value)
        for holder, _ in state
        for key, value in islice(holder.entries(), _ENTRIES)
        if type(value) is Tensor
    ]
    positions, codes = find_nonfinite(value for _, value in named)
    bad = [p for p, code in zip(positions, codes.tolist(), strict=True) if code == 1]
    return BadWeight(text_of_name(named[min(bad)][0]), "NaN", is_state=True) if bad else None


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
