"""Lines of the user's own files that made what a cure may have to change: optimizers, scalers, half weights.

A line belongs to the user if its file lies in the folder of the script;
code of installed packages is passed over, so that what a framework makes has the line that called it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.formats import dtype_name
from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import BackwardCall
from halfguard.investigation.passes import Made, Misused, PassPlan, Place, SubmodulePlace
from halfguard.precision.modes import HALF_DTYPES
from halfguard.step.installed import is_installed
from halfguard.step.parameters import parameters_of


def _facts_of(optimizer: torch.optim.Optimizer, lines: tuple[Place, ...]) -> dict[str, Any]:
    """Return what is known of an optimizer that these lines made, as fields of ``Made``."""
    groups = optimizer.param_groups
    given = (group.get("eps") for group in groups)
    first = next(iter(groups), {})
    rate = first.get("initial_lr", first.get("lr"))  # without a schedule
    return {
        "optimizer": next(iter(lines), None),
        "optimizer_callers": lines[1:],
        "optimizer_class": type(optimizer).__name__,
        "rate": float(rate) if isinstance(rate, int | float) else None,
        "eps": min((float(eps) for eps in given if isinstance(eps, int | float)), default=None),
        "fused": any(group.get("fused") for group in groups),
    }


def _makes(frame: FrameType, made: Any) -> bool:
    """Return whether a frame is one of an object's constructors.

    Before Python 3.13 a frame keeps what ``f_locals`` returned until it ends, with all tensors that are in
    it. So only constructors are read, which end soon.
    """
    code = frame.f_code
    is_constructor = code.co_name == "__init__" and code.co_argcount > 0
    return is_constructor and frame.f_locals.get(code.co_varnames[0]) is made


def _common_dtype(tensors: list[torch.Tensor]) -> str:
    dtypes = {dtype_name(one.dtype) for one in tensors}
    return dtypes.pop() if len(dtypes) == 1 else ""


def is_own_file(file: str, folders: tuple[str, ...]) -> bool:
    """Return whether a file is the user's: in one of the folders, and of no installed package."""
    if file.startswith("<") or is_installed(file):
        return False
    if not os.path.isabs(file):  # noqa: PTH117 - of a script that is named by a relative path
        return True
    return any(file.startswith(os.path.join(folder, "")) for folder in folders)  # noqa: PTH118


def _is_bad(buffer: torch.Tensor) -> bool:
    """Return whether a buffer holds NaN or inf; -inf alone is a mask."""
    # Subclasses stand for tensors without numbers.
    if type(buffer) is not torch.Tensor or buffer.is_meta or not buffer.is_floating_point():
        return False
    return bool((buffer.isnan() | buffer.isposinf()).any())


class MadePlaces:
    """Listens for what the script makes."""

    def __init__(self, plan: PassPlan) -> None:
        self._folders = plan.isolated or plan.originals
        # By identity: a module may have a hash of its own, which fails before it is complete. The keys are
        # weak, because the identity of what is gone may be that of something new.
        self._modules: MutableMapping[nn.Module, Place] = WeakIdKeyDictionary()
        self._optimizers: MutableMapping[Any, tuple[Place, ...]] = WeakIdKeyDictionary()
        # Whether buffers were bad before they became half, as some are on purpose, by their names.
        self._bad_before: MutableMapping[nn.Module, dict[str, bool]] = WeakIdKeyDictionary()
        # Parameters that became half, also of models that are gone; the innermost line is the first.
        self._half: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Place, ...]]] = {}
        self._known: dict[str, Any] = {}  # other fields of ``Made``
        self._last_optimizer: dict[str, Any] = {}
        self._stepped: MutableMapping[Any, Place | None] = WeakIdKeyDictionary()  # by the scaler

    def facts(self, optimizer: torch.optim.Optimizer | None) -> Made:
        """Return the places; those of one optimizer, if it is known."""
        if optimizer is None:  # it may have been deleted
            return Made(**self._known, **self._last_optimizer, half_module=self._frozen_half([]))
        parameters = list(parameters_of(optimizer))
        half = [p for p in parameters if p.dtype in HALF_DTYPES]
        cast = next((lines for p in half if (lines := self._cast_at(p))), ())
        return Made(
            **self._known,
            **_facts_of(optimizer, self._optimizers.get(optimizer, ())),
            half_weights=next(iter(cast), None),
            half_callers=cast[1:],
            half_dtype=_common_dtype(half),
            half_module=self._frozen_half(parameters),
        )

    def _note(self, name: str, place: Place | None) -> None:
        if place is not None:
            self._known[name] = place

    def _cast_at(self, parameter: torch.Tensor) -> tuple[Place, ...]:
        """Return the lines that made a parameter half."""
        reference, lines = self._half.get(id(parameter), (None, ()))
        return lines if reference is not None and reference() is parameter else ()

    def _frozen_half(self, trained: list[torch.Tensor]) -> Place | None:
        """Return the only line that made weights half which are not trained."""
        own = {id(parameter) for parameter in trained if self._cast_at(parameter)}
        places = {lines[0] for one, (_, lines) in self._half.items() if one not in own}
        return places.pop() if len(places) == 1 else None

    def note_buffers(self) -> None:
        """Note buffers that were made half, and are not finite before anything was trained."""
        for module, name, buffer, _ in self._buffers():
            self._bad_before.setdefault(module, {}).setdefault(name, _is_bad(buffer))

    def _buffers(self) -> Iterator[tuple[nn.Module, str, torch.Tensor, Place]]:
        """Yield the buffers of all modules, with the line that made the module."""
        for module, place in list(self._modules.items()):
            for name, buffer in module.named_buffers(recurse=False):
                yield module, name, buffer, place

    def bad_buffers(self, made: Made) -> Iterator[Misused]:
        """Yield the first half buffer that is not finite; one with -inf alone is a mask."""
        for module, name, buffer, place in self._buffers():
            was_bad = self._bad_before.get(module, {}).get(name, False)
            if buffer.dtype in HALF_DTYPES and not was_bad and _is_bad(buffer):
                half_at = made.half_weights or made.half_module or place
                text = (
                    f"{name} of {type(module).__name__} is 16-bit and holds NaN or Inf at the end "
                    "of the run because its values overflowed. It was converted to 16-bit at "
                    f"{describe_place(half_at)}. Keep weights and buffers in FP32 and run the "
                    "model under torch.autocast."
                )
                found = Misused(kind="bad buffer", code="HD108", sentence=text, place=half_at)
                yield found.model_copy(update={"dtype": dtype_name(buffer.dtype)})
                return

    def _note_made_in_half(self, parameters: list[torch.Tensor]) -> None:
        """Note the lines that made the modules of parameters which were never FP32."""
        half = {id(p): p for p in parameters if p.dtype in HALF_DTYPES and not self._cast_at(p)}
        for module, place in list(self._modules.items()) if half else ():
            for parameter in module.parameters(recurse=False):
                if id(parameter) in half:
                    self._half[id(parameter)] = weakref.ref(parameter), (place,)

    def submodule(self, model: nn.Module | None, path: str) -> tuple[SubmodulePlace, ...]:
        """Return the lines that made a module, or one that holds it, outermost first."""
        if model is None:
            return ()
        names = path.split(".") if path else []
        found = []
        for depth in range(len(names) + 1):
            try:
                holder = model.get_submodule(".".join(names[:depth]))
            except AttributeError:  # a path that leads through a wrapper
                return ()
            place = self._modules.get(holder)
            if place is not None:
                found.append(SubmodulePlace(place=place, path=".".join(names[depth:])))
        return tuple(found)

    def place(self, without: Any = None) -> Place | None:
        """Return the innermost line of the user's files, outside of the constructors of ``without``."""
        return next(self._places(without), None)

    def _places(self, without: Any = None) -> Iterator[Place]:
        """Yield the lines of the user's files that run now, the innermost first."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            own = is_own_file(code.co_filename, self._folders)
            if own and (without is None or not _makes(frame, without)):
                yield code.co_filename, frame.f_lineno
            frame = frame.f_back

    # -- what the script makes

    def on_module_made(self, module: nn.Module) -> None:
        place = self.place(without=module)
        if place is not None:
            self._modules[module] = place

    def on_casting(self, module: nn.Module) -> None:
        for one in module.modules():
            for name, buffer in one.named_buffers(recurse=False):
                if buffer.dtype not in HALF_DTYPES:
                    self._bad_before.setdefault(one, {})[name] = _is_bad(buffer)

    def on_cast(self, _module: nn.Module, new: list[torch.Tensor]) -> None:
        lines = tuple(self._places()) if new else ()
        if lines:
            self._half.update({id(p): (weakref.ref(p), lines) for p in new})

    def on_copied(self, _module: nn.Module) -> None:
        if self._last_optimizer:
            self._note("copied", self.place())

    def on_optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        lines = tuple(self._places(without=optimizer))
        self._optimizers[optimizer] = lines
        self._known.pop("copied", None)  # a copy counts if the optimizer is older
        self._last_optimizer = _facts_of(optimizer, lines)
        self._note_made_in_half(list(parameters_of(optimizer)))

    def on_scaler_made(self, scaler: Any, _device: str) -> None:
        self._note("scaler", self.place(without=scaler))

    def on_backward(self, call: BackwardCall) -> None:
        self._note("backward", self.place())
        self._known["leaf_loss"] = bool(call.losses) and call.losses[0].grad_fn is None

    def on_scaled(self, _scaler: Any) -> None:
        self._note("scaling", self.place())

    def on_scaler_done(self, _scaler: Any, optimizer: Any) -> None:
        self._stepped[optimizer] = self.place()

    def on_scaler_failed(self, optimizer: Any, _error: Exception) -> None:
        if optimizer is not None:  # None if the loss could not be scaled
            self._note("stepped", self._stepped.get(optimizer))

    def on_autocast_made(self, region: Any, _device: str) -> None:
        if region._enabled and region.fast_dtype is torch.float16:
            self._note("autocast", self.place())
            self._known["autocast_device"] = region.device
