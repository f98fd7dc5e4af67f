"""Detectors of loops that train less than they say: stale casts, wrong divisors, gradients of 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import BackwardCall, HookBus, first_number
from halfguard.investigation.detectors import OFTEN, Detector
from halfguard.investigation.passes import Made, Misused, Place
from halfguard.numerics.tensor_rows import local_tensor
from halfguard.precision.modes import HALF_DTYPES
from halfguard.replaying.function_modes import user_place
from halfguard.step.parameters import parameters_of


class StaleCasts(Detector):
    """Optimizer steps inside of one region of autocast, which keeps its casts of the weights."""

    code = "HG216"
    _place: Place | None = None  # of the outermost region
    _steps = 0  # since casts were last forgotten
    _most = 0
    _seen: Place | None = None

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._made: MutableMapping[Any, Place | None] = WeakKeyDictionary()

    def on_autocast_made(self, region: Any, _device: str) -> None:
        """Note the line that makes a region: a decorator is entered where its function is called."""
        self._made[region] = user_place()

    def on_autocast_entered(self, region: Any) -> None:
        """Note the line of a region that is not inside of another one."""
        if not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            self._place, self._steps = self._made.get(region) or user_place(), 0

    def on_casts_forgotten(self) -> None:
        self._steps = 0

    def on_stepped(self, optimizer: Any) -> None:
        on = any(map(torch.is_autocast_enabled, ("cpu", "cuda")))
        if on and torch.is_autocast_cache_enabled():
            wide = any(p.dtype == torch.float32 for p in parameters_of(optimizer))
            self._steps += wide
            if self._steps > self._most:
                self._most, self._seen = self._steps, self._place

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if self._most >= OFTEN and self._seen is not None:
            text = (
                f"{self._most} optimizer steps ran inside a single autocast region, which casts each weight "
                "once and caches the result until the region ends, so the model keeps computing with the "
                f"weights of its first step. Enter autocast in each step: {describe_place(self._seen)}."
            )
            yield Misused(kind="stale casts", code=self.code, sentence=text, place=self._seen)


class DividedTwice(Detector):
    """A loss that is divided twice, one after the other, by the number of micro-batches of a step."""

    code = "HG217"

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        self._divisors: Counter[tuple[float, Place | None]] = Counter()

    def on_backward(self, call: BackwardCall) -> None:
        if call.accumulates and call.losses:
            by = _twice(call.losses[0])
            if by > 1:
                self._divisors[by, user_place()] += 1

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        steps = self.bus.steps or 1
        for (by, place), count in self._divisors.items():
            # Each step has as many micro-batches as the loss is divided by.
            if count >= OFTEN and count > self.bus.backward / 2 and round(count / steps) == by:
                text = (
                    f"The loss is divided by {by:g} twice, although a step has {by:g} micro-batches, so "
                    f"gradients are {by:g} times too small. Accelerate and other frameworks divide the loss "
                    f"themselves, so pass it undivided at {describe_place(place)}."
                )
                yield Misused(kind="divided twice", code=self.code, sentence=text, place=place)
                return


def _twice(loss: Tensor) -> float:
    """Return by what a loss was divided twice in a row; 0 if it was not."""
    outer = constant_of(loss.grad_fn, "DivBackward0")
    if not outer or loss.grad_fn is None:
        return 0.0
    inner = constant_of(loss.grad_fn.next_functions[0][0], "DivBackward0")
    return outer if outer == inner else 0.0


def constant_of(node: Any, name: str) -> float:
    """Return the number that a node of this name multiplies or divides by; 0 if it is another node."""
    by = getattr(node, "_saved_other", None) if node and node.name() == name else None
    return float(by) if isinstance(by, Tensor) and by.numel() == 1 else 0.0


class ZeroGradients(Detector):
    """Gradients that are exactly 0 in every backward pass."""

    _passes = 0
    _learns = False  # some gradient was not 0
    _has_loss = False  # some loss was not 0

    def on_backward_done(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        if self._learns or not call.accumulates or not gradients:
            return
        with self.bus.unobserved():
            self._learns = any(map(_has_any, gradients))
            self._has_loss |= first_number(call.losses) != 0
        self._passes += 1

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if not self._learns and self._passes >= OFTEN:
            loss = "" if self._has_loss else ", and so was every loss"
            text = (
                f"Every gradient was exactly 0 in all {self._passes} backward passes{loss}, so the script "
                "learns nothing. Look for rewards, masks or weights that are 0 where the loss is computed."
            )
            yield Misused(kind="zero gradients", sentence=text)


def _has_any(gradient: Tensor) -> bool:
    """Return whether a gradient has a number that is not 0."""
    dense = gradient.coalesce().values() if gradient.is_sparse else local_tensor(gradient)
    return bool(dense.any())


class HalfMoments(Detector):
    """Moments of Adam that were saved in half, and are 0 when they are loaded."""

    code = "HG311"
    _MANY = 0.01  # of the elements whose first moment is not 0
    _seen: Misused | None = None
    _taken: Place | None = None

    def on_state_taken(self) -> None:
        self._taken = user_place() or self._taken

    def on_loading_state(self, optimizer: Any, state: Any) -> None:
        """Count second moments that are 0 in half, although the first moment is not 0."""
        states = state.get("state", {}).values() if isinstance(state, dict) else ()
        pairs = [
            (one.get("exp_avg"), one.get("exp_avg_sq")) for one in states if isinstance(one, dict)
        ]
        half = [
            (first, second)
            for first, second in pairs
            if isinstance(first, Tensor)
            and isinstance(second, Tensor)
            and second.dtype in HALF_DTYPES
        ]
        wide = all(p.dtype not in HALF_DTYPES for p in parameters_of(optimizer))
        if self._seen is not None or not half or not wide:
            return
        with self.bus.unobserved():
            moved = sum(int((first != 0).sum()) for first, _ in half)
            lost = sum(int(((first != 0) & (second == 0)).sum()) for first, second in half)
        place = user_place()
        if moved and lost > self._MANY * moved and place is not None:
            saved = describe_place(self._taken or place)
            text = (
                f"The state of {type(optimizer).__name__} was saved in float16: {lost / moved:.0%} of the "
                "second moments are too small for float16 and are 0 when they are loaded, so the next "
                f"steps are too large. The state is taken at {saved}, and loaded at "
                f"{describe_place(place)}. Save it in FP32."
            )
            self._seen = Misused(kind="half moments", code=self.code, sentence=text, place=place)

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if self._seen is not None:
            yield self._seen


class EarlyUnscaling(Detector):
    """Scaled backward passes between ``unscale_`` and the step of an optimizer.

    The scaler unscales each optimizer once per step. What a backward pass adds later is still multiplied by
    the loss scale, and is never divided by it. Nothing raises an error if the call comes once per step, but
    in the wrong micro-batch.
    """

    code = "HG202"

    def __init__(self, bus: HookBus) -> None:
        super().__init__(bus)
        # By optimizer: the line that unscaled it, and a gradient from before the backward pass that runs.
        self._unscaled: MutableMapping[Any, Place] = WeakIdKeyDictionary()
        self._before: MutableMapping[Any, tuple[Tensor, int]] = WeakIdKeyDictionary()
        self._seen: list[tuple[Place, Place | None]] = []

    def on_unscaling(self, scaler: Any, optimizer: Any) -> None:
        """Note the line; a step by the scaler, which unscales as well, forgets it at once."""
        place = user_place()
        if place is not None and scaler.is_enabled():
            self._unscaled[getattr(optimizer, "optimizer", optimizer)] = place

    def on_scaler_stepped(self, _scaler: Any, optimizer: Any) -> None:
        self._unscaled.pop(getattr(optimizer, "optimizer", optimizer), None)

    def on_zeroed(self, zeroed: Any) -> None:
        """Forget an optimizer whose gradients are cleared; all of them, if a model is zeroed."""
        for optimizer in list(self._unscaled):
            if optimizer is zeroed or hasattr(zeroed, "forward"):
                del self._unscaled[optimizer]

    def on_backward(self, call: BackwardCall) -> None:
        self._before = WeakIdKeyDictionary()
        if call.accumulates and call.scaler is not None and self.bus.scale_of(call.scaler) != 1:
            for optimizer in self._unscaled:
                if (grad := self._kept_gradient(optimizer)) is not None:
                    self._before[optimizer] = grad, grad._version

    def on_backward_done(self, _call: BackwardCall, _gradients: Any) -> None:
        for optimizer, (grad, version) in self._before.items():
            if grad._version != version:
                self._seen.append((self._unscaled[optimizer], user_place()))

    def _kept_gradient(self, optimizer: Any) -> Tensor | None:
        """Return a gradient of an optimizer that is not 0."""
        grads = (p.grad for p in parameters_of(optimizer) if p.grad is not None)
        with self.bus.unobserved():
            return next((grad for grad in grads if not grad.is_sparse and bool(grad.any())), None)

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        if len(self._seen) < OFTEN:
            return
        place, by = self._seen[0]
        text = (
            f"Gradients were unscaled at {describe_place(place)}, and {len(self._seen)} later backward "
            "passes of the same steps added gradients to them that are still multiplied by the loss "
            f"scale: {describe_place(by)}. Call scaler.unscale_(optimizer) after the last micro-batch of a "
            "step, under the same condition as scaler.step."
        )
        yield Misused(kind="unscaled early", code=self.code, sentence=text, place=place, by=by)
