"""Gradients that are unscaled too early: other micro-batches add scaled gradients to them.

The scaler unscales each optimizer once per step. What a backward pass adds later is still multiplied by the
loss scale, and is never divided by it. Nothing raises an error if the call comes once per step, but in the
wrong micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.investigation.advice import describe_place
from halfguard.investigation.bus import BackwardCall, HookBus
from halfguard.investigation.detectors import OFTEN, Detector
from halfguard.investigation.passes import Made, Misused
from halfguard.replaying.function_modes import Place, user_place
from halfguard.step.parameters import parameters_of


class EarlyUnscaling(Detector):
    """Scaled backward passes between ``unscale_`` and the step of an optimizer."""

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
