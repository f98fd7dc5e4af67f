"""Wrong uses of torch: errors that are known, calls that train wrongly, and the repairs of both.

A crash goes back to a line of the user. What is scaled, clipped, zeroed or moved on at a wrong time raises
nothing, and is told by the detectors.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import TypeGuard

from halfguard.autocast_ops import MIXED_WRITE
from halfguard.investigation.advice import describe_place
from halfguard.investigation.cures import untried
from halfguard.investigation.made_places import is_own_file
from halfguard.investigation.passes import Made, Misused, MisuseKind, PassResult, Place
from halfguard.records.autopsy import Cure
from halfguard.repairs import casts, masks, scaling, settings, steps
from halfguard.repairs.add_scaler import Region, add_scaler
from halfguard.repairs.fp32_weights import fp32_parameters, fp32_weights
from halfguard.repairs.scalers import scaler_at

_PLACE = re.compile(r'^ *File "([^"]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Crash:
    """An exception that ended a script, the user's innermost line, and what the script has made."""

    error: str
    place: Place | None
    made: Made

    @property
    def _known(self) -> _Known | None:
        found = (one for one in _KNOWN if re.search(one.pattern, self.error))
        return next((one for one in found if one.is_of(self)), None)

    @property
    def code(self) -> str:
        """The code of the failure, if the error is known."""
        return "" if self._known is None else self._known.code

    @property
    def is_of_scaler(self) -> bool:
        """Return whether the scaler was called in a wrong order: no number is to blame."""
        return self.code in _OF_SCALER

    @property
    def advice(self) -> str:
        """What to change, if the error is known; nothing of it was tested."""
        if self._known is None:
            return ""
        made, caller = self.made, next(iter(self.made.half_callers), None)
        half = _sentence(
            "They were converted to 16-bit at {}.", made.half_weights or made.half_module
        )
        return self._known.text.format(
            *getattr(re.search(_NO_KERNEL, self.error), "groups", tuple)(),
            at=_sentence("The line is {}.", self.place),
            half=half + _sentence("That line was called at {}.", caller),
            mixed="16-bit weights were" if half else "A 16-bit tensor was",
            optimizer=_sentence("It was made at {}.", made.optimizer),
            copied=_sentence("A model was copied later at {}.", made.copied),
            leaf=_sentence("It was made at {}.", _given_gradients(made.scaling)),
            stepped=_sentence("The step without an update is {}.", made.stepped),
        )

    def cures(self) -> list[Cure]:
        """Return patches that may cure it; a run of the patched script has to show that."""
        patches = () if self._known is None else self._known.repairs(self)
        advised = (cure for one in patches for cure in untried(self.advice, one, self.code))
        return [*self._named(), *advised]

    def _named(self) -> Iterator[Cure]:
        """Yield cures whose line is another than that of the advice."""
        if self.code == "HG202":
            patch, places = steps.update_before_continue.with_places(self.made.scaling)
            yield from untried(
                "The loop continues without scaler.update() at "
                f"{describe_place(next(iter(places), None))}, so the next iteration unscales the "
                "same step again. Call scaler.step() and scaler.update() in every iteration; the "
                "scaler skips non-finite steps itself.",
                patch,
                "HG302",
            )
        if label := re.search(_LABEL, self.error):
            ways = {masks.ignored_labels: "Write -100", masks.ignore_label: "Pass ignore_index"}
            for repair, way in ways.items():
                patch, places = repair.with_places(self.place, int(label[1]))
                yield from untried(
                    f"The label {label[1]} is not a class. torch's losses ignore only the label -100 unless "
                    f"ignore_index names another one. {way} at {describe_place(next(iter(places), None))}.",
                    patch,
                    "HG612",
                )
        if self.code == "HD106" and self.made.optimizer is not None:
            lines = (self.made.optimizer, *self.made.optimizer_callers)
            named = next((one for one in lines if not steps.is_returned(one)), None)
            patch, places = steps.optimizer_last.with_places(named)
            moved = f"The patch moves this statement: {describe_place(next(iter(places), None))}."
            yield from untried(f"{self.advice} {moved}", patch, self.code)


def _sentence(text: str, place: Place | None) -> str:
    return "" if place is None else f" {text.format(describe_place(place))}"


def _given_gradients(near: Place | None) -> Place | None:
    """Return the only line of a file that sets requires_grad, which a loss without a graph needs."""
    try:
        tree = ast.parse("" if near is None else Path(near[0]).read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    lines = {node.lineno for node in ast.walk(tree) if _sets_requires_grad(node)}
    return (near[0], lines.pop()) if near is not None and len(lines) == 1 else None


def _sets_requires_grad(node: ast.AST) -> TypeGuard[ast.Call | ast.Assign]:
    if isinstance(node, ast.Assign):
        return any(
            isinstance(to, ast.Attribute) and to.attr == "requires_grad" for to in node.targets
        )
    if not isinstance(node, ast.Call):
        return False
    by_method = isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_"
    return by_method or any(key.arg == "requires_grad" for key in node.keywords)


def fp32_weight_patches(made: Made) -> Iterator[str]:
    """Yield patches that keep weights in FP32: under autocast in the dtype that they had, and without it."""
    for dtype in (made.half_dtype, None) if made.half_dtype else (None,):
        yield fp32_weights(made.half_weights, dtype, made.half_callers)


def crash_place(log: str, folders: Sequence[Path]) -> Place | None:
    """Return the innermost line of a file of the user, from the traceback in a log."""
    places = [(file, int(line)) for file, line in _PLACE.findall(log)]
    roots = tuple(map(str, folders))
    own = [place for place in places if is_own_file(place[0], roots)]
    return own[-1] if own else None


def with_place(log: str, place: Place | None) -> str:
    """Return the end of a traceback with the user's innermost line, which may be far above."""
    shown = "" if place is None else f'  File "{place[0]}", line {place[1]}'
    if place is None or re.search(rf"{re.escape(shown)}\b", log):
        return log
    return f"{shown}\n    {linecache.getline(*place).strip()}\n  ...\n{log}"


def _fp32_call(crash: Crash) -> Iterator[str]:
    kernel = re.search(_NO_KERNEL, crash.error)
    if kernel is not None and crash.place is not None:
        ways = (casts.call_in_fp32(crash.place, kernel[1], index) for index in count())
        yield from takewhile(bool, ways)


@dataclass(frozen=True)
class _Known:
    """An error of torch: its failure in the catalogue, what to change, and the repairs of it."""

    pattern: str
    code: str
    text: str
    repairs: Callable[[Crash], Iterable[str]]
    is_of: Callable[[Crash], bool] = lambda _: True  # among those with the same message


_OF_SCALER = ("HG202", "HG302", "HG303", "HD106", "HD107")
_LABEL = r"Target (-?\d+) is out of bounds"
# Of Linear and of convolutions; with other dtypes half is not to blame.
_MIXED = "same dtype.*(Half|BFloat16)|type .*(Half|BFloat16).* should be the same"
_NO_KERNEL = r'"([^"]*)" not implemented for .(Half|BFloat16)\b'
_KNOWN = (
    _Known(
        "Attempting to unscale FP16 gradients",
        "HG401",
        "A GradScaler needs FP32 weights and refuses to unscale FP16 gradients. Keep the weights "
        "in FP32 and run the model under torch.autocast.{half}",
        lambda one: (
            *fp32_weight_patches(one.made),
            settings.switch_on(one.place, "autocast_adapter_dtype", anywhere=True),
            fp32_parameters(one.made.optimizer),
        ),
    ),
    _Known(
        "Half without overflow",
        "HG101",
        "A constant is outside the FP16 range, whose lowest value is -65504. Write "
        "torch.finfo(torch.float16).min, or compute the line in FP32.{at}",
        lambda one: (masks.smallest_number(one.place, "float16"),),
    ),
    _Known(
        "No inf checks were recorded for this optimizer",
        "HD107",
        "The loss is not connected to any parameter, so the backward pass computes no gradients: the "
        "script made it from a number, or detached it, and then set requires_grad.{leaf} Add up the loss "
        "tensors themselves. .item(), float() and torch.tensor() leave the graph behind.",
        lambda _: (),
        lambda one: one.made.leaf_loss,
    ),
    _Known(
        "No inf checks were recorded for this optimizer",
        "HD106",
        "No parameter of this optimizer has a gradient. The model may have been copied, replaced "
        "or wrapped after the optimizer was created (then create the optimizer last), the "
        "gradients may have been set to None before the step, or all parameters may be "
        "frozen.{optimizer}{copied}",
        lambda one: (steps.step_with_gradients(one.place),),
    ),
    _Known(
        "No inf checks were recorded prior to update",
        "HG303",
        "scaler.update() was called without a preceding scaler.step(). Call each of them once, "
        "after the last micro-batch of a step.{at}",
        lambda one: (steps.update_after_step(one.place),),
    ),
    _Known(
        r"unscale_\(\) is being called after step|step\(\) has already been called",
        "HG302",
        "scaler.update() was not called after the last scaler.step() of this optimizer, so the scaler still "
        "counts its next step as the same one. Call scaler.update() after every step, also if an optimizer "
        "steps several times per iteration.{stepped}{at}",
        lambda one: (steps.add_update(one.made.stepped),),
    ),
    _Known(
        r"unscale_\(\) has already been called",
        "HG202",
        "Gradients may be unscaled only once per step. Call scaler.unscale_(optimizer) only after "
        "the last micro-batch and scaler.update() after every step. (Accelerate's clip_grad_norm_ "
        "also unscales.){at}",
        lambda one: (scaling.unscale_once(one.place),),
    ),
    _Known(
        "source state dict is empty, possibly because it was saved from a disabled",
        "HG312",
        "The checkpoint has no scaler state: the run that wrote it had no scaler, or its scaler "
        "was disabled. Load the scaler state only if the checkpoint has one.{at}",
        lambda one: (scaling.load_if_not_empty(one.place),),
    ),
    _Known(  # of functions that write into a tensor
        MIXED_WRITE,
        "HD110",
        "Values of one dtype are written into a tensor of another dtype. Under autocast, the "
        "result is 16-bit but the target tensor is not. Cast the values before writing them: "
        "source.to(target.dtype).{at}",
        lambda one: (casts.cast_source(one.place),),
    ),
    _Known(
        _MIXED,
        "HD110",
        "The backward pass of an autograd.Function runs without autocast, and combines an FP32 tensor "
        "with a 16-bit one, such as one that its forward pass saved under autocast. Decorate forward "
        "with torch.amp.custom_fwd(..., cast_inputs=torch.float32) and backward with "
        "torch.amp.custom_bwd(...).{at}",
        lambda one: (casts.custom_autocast(one.place),),
        lambda one: casts.is_custom_backward(one.place),
    ),
    _Known(
        _MIXED,
        "HD110",
        "{mixed} combined with FP32 inputs outside autocast. Keep the weights in FP32 "
        "and run the model under torch.autocast, or cast the inputs.{at}{half}",
        lambda one: (*fp32_weight_patches(one.made), casts.float_arguments(one.place, one.error)),
    ),
    _Known(
        _LABEL,
        "HG612",
        "A label is outside the classes 0 to C - 1, where C is the number of outputs. Number the "
        "labels from 0, or give the model an output for each label. To leave out padding, label it -100, or "
        "pass its label as ignore_index.{at}",
        lambda one: (masks.labels_from_zero(one.place),),
    ),
    _Known(
        "unsupported ScalarType BFloat16",
        "HD100",
        "NumPy has no bfloat16, so a bfloat16 tensor cannot become an array. Call .float() before "
        ".numpy().{at}",
        lambda one: (casts.float_before_numpy(one.place),),
    ),
    _Known(
        _NO_KERNEL,
        "HD100",
        (
            "torch does not implement {} for {} on this device. Compute it in FP32: call .float() "
            "on its inputs.{at}"
        ),
        _fp32_call,
    ),
)


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
    ways = dict.fromkeys(found)
    plain = (cure for way in ways for cure in untried(one.sentence, way, one.code))
    return [*_by_framework(one, first), *plain]


def _by_framework(one: Misused, first: PassResult) -> Iterator[Cure]:
    """Yield cures that a framework does, if it is asked to on another line."""
    if one.kind == "schedule":
        text = "Accelerate does so if the schedule is passed to it"
        patch, lines = settings.add_to_prepare.with_places(one.place)
    elif one.kind == "lost updates":
        text = "Lightning keeps them in FP32 with another precision"
        patch, lines = settings.mixed_precision.with_places(first.made.half_weights)
    else:
        return
    told = f"{one.sentence} {text}: {describe_place(next(iter(lines), None))}."
    yield from untried(told, patch, one.code)


def _schedule(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    if made.fused:
        yield settings.change_keyword(made.optimizer, "fused", "False")
    yield steps.schedule_after_step(one.place)
    yield settings.initial_scale(made.scaler, first.scaler.last)


def _add_scaler(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    region = Region(made.optimizer, made.autocast, made.autocast_device)
    yield add_scaler(one.place, region, one.scale)


def _fp32_weights(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    half = one.place if one.kind == "bad buffer" else made.half_weights or made.half_module
    known = {"half_weights": half, "half_dtype": one.dtype or made.half_dtype}
    return fp32_weight_patches(made.model_copy(update=known))


def _raw_step(one: Misused, first: PassResult) -> Iterator[str]:
    """Yield steps by the scaler; a framework steps by it, if it is given the optimizer."""
    yield settings.add_to_prepare(one.place)
    yield settings.switch_on(one.place, "use_pl_optimizer", anywhere=True)
    if one.kind == "second step":
        yield steps.leave_out_step(one.place)
    else:
        yield steps.step_by_scaler(one.place, first.made.scaling)


_PATCHES: dict[MisuseKind, Callable[[Misused, PassResult], Iterable[str]]] = {
    "clipped": lambda one, _: [scaling.unscale_before_clipping(one.place)],
    "unscaled early": lambda one, _: [scaling.unscale_once(one.place)],
    "schedule": _schedule,
    "not scaled": lambda one, _: [scaling.scale_loss(one.place, scaler_at(one.by))],
    "other scaler": lambda one, _: [scaling.scale_loss(one.place, scaler_at(one.by), instead=True)],
    "new scaler": lambda one, _: [steps.scaler_once(one.place)],
    "raw step": _raw_step,
    "second step": _raw_step,
    "penalty": lambda one, _: [scaling.unscale_penalty(one.place)],
    "scaler off": lambda one, first: [
        settings.scaler_device(one.place, first.made.autocast_device)
    ],
    "not zeroed": lambda one, _: [steps.zero_gradients(one.by)],
    "stale casts": lambda one, _: [settings.autocast_region(one.place, "cache_enabled", "False")],
    "divided twice": lambda one, _: [scaling.undivided_loss(one.place)],
    "no scaler": _add_scaler,
    "lost updates": _fp32_weights,
    "bad buffer": _fp32_weights,
    "lost increments": lambda one, first: [
        casts.leave_out_cast(first.made.half_module),
        *_fp32_weights(one, first),
    ],
    "lost digits": lambda one, first: [casts.leave_out_cast(one.place), *_fp32_weights(one, first)],
    "rounded integers": lambda one, _: [casts.float_positions(one.place)],
}
