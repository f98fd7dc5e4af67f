"""Numbers that half rounds away without an overflow: positions, updates of weights, small gradients."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from halfguard.investigation.advice import describe_place
from halfguard.investigation.passes import Misused, Place
from halfguard.investigation.training_loop import BackwardCall, TrainingLoop
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import user_place

_POSITIONS = 16  # fewer numbers in a row are no positions
_MOST_LOST = 0.9  # of the elements whose gradient is not 0
_FEWEST_STEPS = 3
_FEW_BITS = 2.0**-19  # gradients below have at most 5 significant bits in float16
_MOST_ELEMENTS = 5_000_000  # of parameters that are copied


class RoundedPositions:
    """Notes the first line where whole numbers in a row become half, and neighbours become equal."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._dtype = ""

    def look(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Look at the cast of a tensor."""
        if self._place is not None or func.overloadpacket.__name__ != "_to_copy":
            return
        numbers = args[0] if args else None
        if not isinstance(numbers, Tensor) or not isinstance(out, Tensor):
            return
        whole = not numbers.is_floating_point() and not numbers.is_complex()
        if whole and out.dtype in HALF_DTYPES and _collide(numbers, out):
            self._place, self._dtype = user_place(), str(out.dtype).removeprefix("torch.")

    def found(self) -> tuple[Misused, ...]:
        """Return what was seen."""
        if self._place is None:
            return ()
        text = (
            f"Positions become {self._dtype} at {describe_place(self._place)}: whole numbers above "
            f"{2048 if self._dtype == 'float16' else 256} are rounded there, and neighbours become equal. "
            "Compute them in FP32."
        )
        return (Misused(kind="rounded integers", sentence=text, place=self._place),)


def _collide(numbers: Tensor, out: Tensor) -> bool:
    if numbers.dim() != 1 or numbers.numel() < _POSITIONS or numbers.dtype == torch.bool:
        return False
    in_a_row = bool((numbers[1:] - numbers[:-1] == 1).all())
    return in_a_row and bool((out[1:] == out[:-1]).any())


class LostUpdates:
    """Counts elements of half weights that a step of torch's own optimizers leaves as they are."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self.is_on = False
        self._before: list[
            tuple[Tensor, Tensor, Tensor]
        ] = []  # parameter, a copy, where it has a gradient
        self._shares: list[float] = []
        self._place: Place | None = None
        self._dtype = ""
        self._hooks = (
            register_optimizer_step_pre_hook(self._keep),
            register_optimizer_step_post_hook(self._compare),
        )

    def remove(self) -> None:
        """Take the sensors away."""
        for hook in self._hooks:
            hook.remove()

    def _keep(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._before = []
        if not self.is_on or not type(optimizer).__module__.startswith("torch.optim"):
            return
        room = _MOST_ELEMENTS
        with self._loop.unobserved():
            groups = [group for group in optimizer.param_groups if _has_rate(group)]
            for parameter in (p for group in groups for p in group["params"]):
                room -= parameter.numel()
                if parameter.dtype in HALF_DTYPES and parameter.grad is not None and room > 0:
                    has_gradient = parameter.grad.to_dense() != 0
                    self._before.append((parameter, parameter.detach().clone(), has_gradient))
                    self._dtype = str(parameter.dtype).removeprefix("torch.")

    def _compare(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._before:
            return
        self.is_on = False
        with self._loop.unobserved():
            lost = sum(int(((p == old) & has).sum()) for p, old, has in self._before)
            moved = sum(int(has.sum()) for *_, has in self._before)
        self._before = []
        if moved:
            self._shares.append(lost / moved)
            self._place = self._place or user_place()

    def found(self) -> tuple[Misused, ...]:
        """Return what was seen, if most updates were lost in every step."""
        if len(self._shares) < _FEWEST_STEPS or min(self._shares) < _MOST_LOST:
            return ()
        text = (
            f"{min(self._shares):.0%} of the updates of half weights, or more, are lost in each step: they "
            "are smaller than the distance to the next half number. Keep the weights in FP32, and run the "
            "model under torch.autocast."
        )
        return (Misused(kind="lost updates", sentence=text, place=self._place, dtype=self._dtype),)


def _has_rate(group: dict[str, Any]) -> bool:
    """Return whether a group of an optimizer is trained: a learning rate of 0 freezes it."""
    return "lr" not in group or float(group["lr"]) != 0


def _values(gradient: Tensor) -> Tensor:
    """Return the numbers of a gradient, which may be sparse."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


class SmallGradients:
    """Notes a backward pass without a scaler, whose gradients are too small for half."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._seen: list[Misused] = []
        self._small: list[bool] = []
        self._has_fp16 = False  # a region of autocast
        self._enter: Any = torch.autocast.__enter__
        self._watch_autocast()

    def _watch_autocast(self) -> None:
        """Note whether a region of FP16 is entered; it stays noted."""
        original = self._enter

        @wraps(original)
        def enter(region: Any) -> Any:
            self._has_fp16 |= region._enabled and region.fast_dtype is torch.float16
            return original(region)

        setattr(torch.autocast, "__enter__", enter)  # noqa: B010

    def remove(self) -> None:
        """Take the sensor away."""
        setattr(torch.autocast, "__enter__", self._enter)  # noqa: B010

    def look(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        """Look at the gradients of a backward pass."""
        if call.scaled or self._loop.scaler is not None or not gradients or not self._has_fp16:
            return
        with self._loop.unobserved():
            values = [_values(g.detach()) for g in gradients]
            largest = [float(g.abs().max()) for g in values if g.numel()]
            dense = [g.detach() for g in gradients if not g.is_sparse]
            norms = tuple(float(g.double().norm()) for g in dense)
        few = sum(one < _FEW_BITS for one in largest)
        self._small.append(few > len(largest) / 2)
        place = user_place()
        text = (
            "Autocast runs in float16 without a loss scale, and most gradients are too small for it: they "
            f"are 0, or have a few bits left, at {describe_place(place)}. Scale the loss by a GradScaler."
        )
        seen = Misused(
            kind="no scaler",
            sentence=text,
            place=place,
            backward=self._loop.backward,
            norms=norms,
            sizes=tuple(g.numel() for g in dense),
        )
        self._seen.append(seen)

    def found(self) -> tuple[Misused, ...]:
        """Return what was seen; only FP32 can tell if it is wrong."""
        # Later they may be small because the model has learnt.
        early = self._small[1 : len(self._small) // 2 + 1]
        if len(self._seen) < _FEWEST_STEPS or not all(early):
            return ()
        return (self._seen[len(self._seen) // 2],)
