"""Cures of calls that train wrongly: what is scaled, clipped, zeroed or moved on at a wrong time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from halfguard.investigation.advice import describe_place
from halfguard.investigation.crashes import Crash, fp32_weight_patches
from halfguard.investigation.cures import untried
from halfguard.investigation.passes import Misused, MisuseKind, PassResult
from halfguard.records.autopsy import Cure
from halfguard.repairs.add_scaler import Region, add_scaler
from halfguard.repairs.add_to_prepare import add_to_prepare
from halfguard.repairs.float_positions import float_positions
from halfguard.repairs.initial_scale import initial_scale
from halfguard.repairs.keywords import change_keyword
from halfguard.repairs.leave_out_cast import leave_out_cast
from halfguard.repairs.scale_loss import scale_loss
from halfguard.repairs.scaler_device import scaler_device
from halfguard.repairs.scalers import scaler_at
from halfguard.repairs.schedule_after_step import schedule_after_step
from halfguard.repairs.unscale_before_clipping import unscale_before_clipping
from halfguard.repairs.unscale_penalty import unscale_penalty
from halfguard.repairs.zero_gradients import zero_gradients


def misuse_cures(first: PassResult) -> list[Cure]:
    """Return cures of what a run misuses; a run of the patched script has to show each."""
    return [cure for one in first.misuse for cure in cures_of(one, first)]


def cures_of(one: Misused, first: PassResult) -> list[Cure]:
    """Return the cures of one misuse, the most specific first."""
    if one.kind == "hidden error":
        crash = Crash(one.error, one.place, first.made)
        found = [cure.patch for cure in crash.cures()]
    else:
        make = _PATCHES.get(one.kind)
        found = [] if make is None else list(make(one, first))
    cures = [untried(one.sentence, patch, one.code) for patch in dict.fromkeys(found) if patch]
    return [*_prepared(one), *cures]


def _prepared(one: Misused) -> Iterator[Cure]:
    """Yield a schedule that Accelerate moves, if it was not given to prepare."""
    patch, lines = add_to_prepare.with_places(one.place if one.kind == "schedule" else None)
    if patch:
        text = f"{one.sentence} Accelerate does so, if it is given the schedule: "
        yield untried(f"{text}{describe_place(lines[0])}.", patch, one.code)


def _schedule(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    if made.fused:
        yield change_keyword(made.optimizer, "fused", "False")
    yield schedule_after_step(one.place)
    yield initial_scale(made.scaler, first.scaler.last)


def _add_scaler(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    region = Region(made.optimizer, made.autocast, made.autocast_device)
    yield add_scaler(one.place, region, one.scale)


def _fp32_weights(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    half = one.place if one.kind == "bad buffer" else made.half_weights
    known = {"half_weights": half, "half_dtype": one.dtype or made.half_dtype}
    return fp32_weight_patches(made.model_copy(update=known))


_PATCHES: dict[MisuseKind, Callable[[Misused, PassResult], Iterator[str]]] = {
    "clipped": lambda one, _: iter((unscale_before_clipping(one.place),)),
    "schedule": _schedule,
    "not scaled": lambda one, _: iter((scale_loss(one.place, scaler_at(one.by)),)),
    "other scaler": lambda one, _: iter((scale_loss(one.place, scaler_at(one.by), instead=True),)),
    "penalty": lambda one, _: iter((unscale_penalty(one.place),)),
    "scaler off": lambda one, first: iter((scaler_device(one.place, first.made.autocast_device),)),
    "not zeroed": lambda one, _: iter((zero_gradients(one.by),)),
    "no scaler": _add_scaler,
    "lost updates": _fp32_weights,
    "bad buffer": _fp32_weights,
    "lost digits": lambda one, _: iter((leave_out_cast(one.place),)),
    "rounded integers": lambda one, _: iter((float_positions(one.place),)),
}
