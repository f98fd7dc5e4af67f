"""Which backward pass gave gradients to which optimizer, and by what its loss was scaled.

A scaler divides the gradients of its optimizer by its scale. It is wrong if a loss was not scaled, or by
another scaler, or if gradients of steps before are still there. What the script does to gradients itself is
not known, and not blamed.
"""

from __future__ import annotations

import weakref
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import OptState
from torch.utils.weak import WeakIdKeyDictionary

from halfguard.investigation.advice import describe_place
from halfguard.investigation.passes import Misused, MisuseKind
from halfguard.investigation.training_loop import BackwardCall, TrainingLoop
from halfguard.replaying.function_modes import Place, user_place
from halfguard.step.parameters import parameters_of

_SAMPLE = 16  # parameters of an optimizer whose gradients are looked at
_OFTEN = 3  # steps in which it is wrong
Mark = tuple[int, int] | None  # a gradient and its version


@dataclass
class Source:
    """A backward pass that gave gradients to an optimizer."""

    scaler: weakref.ref[Any] | None  # that has scaled its loss, if it is known
    is_plain: bool  # its loss was not scaled
    place: Place | None


@dataclass
class Followed:
    """What is known of the gradients of one optimizer."""

    sources: list[Source] = field(default_factory=list)
    marks: list[Mark] | None = None  # as they were seen last
    fresh: bool = False  # it has not stepped since
    left: Place | None = None  # a line that added gradients to those of a step before

    def forget(self) -> None:
        """Forget where the gradients come from: the script has changed them, or zeroed them."""
        self.sources, self.left = [], None


@dataclass
class GradientSources:
    """Follows the gradients of all optimizers, from the installation of its sensors on."""

    loop: TrainingLoop
    _followed: MutableMapping[Any, Followed] = field(default_factory=WeakIdKeyDictionary)
    _wrong: dict[MisuseKind, list[tuple[Place | None, Place | None]]] = field(default_factory=dict)

    def install(self) -> None:
        """Put the sensors on torch; they stay for the life of the process."""
        self._watch_zeroing(torch.optim.Optimizer)
        self._watch_zeroing(nn.Module)

    def misused(self) -> list[Misused]:
        """Return what was wrong in several steps."""
        told = []
        for kind, places in self._wrong.items():
            place, by = places[0]
            if len(places) >= _OFTEN:
                text = _TEXTS[kind].format(place=describe_place(place), by=describe_place(by))
                told.append(Misused(kind=kind, sentence=text, place=place, by=by))
        return told

    def before_backward(self, call: BackwardCall) -> None:
        """Note the gradients that are there."""
        if not call.accumulates:
            return
        for optimizer in self.loop.optimizers:
            one = self._followed.setdefault(optimizer, Followed())
            before, one.marks = one.marks, _marks_of(optimizer)
            if before != one.marks or not self._are_left(_sampled(optimizer)):
                one.forget()
            elif not one.fresh and one.sources:
                one.left = user_place() or one.left

    def _are_left(self, grads: list[Tensor | None]) -> bool:
        with self.loop.unobserved():
            return any(grad is not None and bool(grad.any()) for grad in grads)

    def after_backward(self, call: BackwardCall) -> None:
        """Note the optimizers whose gradients have changed."""
        if not call.accumulates:
            return
        for optimizer in self.loop.optimizers:
            one = self._followed.setdefault(optimizer, Followed())
            before, one.marks = one.marks, _marks_of(optimizer)
            if before == one.marks:
                continue
            if not one.fresh:  # a step has used those before
                one.sources = []
            one.fresh = True
            scaler = None if call.scaler is None else weakref.ref(call.scaler)
            if len(one.sources) < _SAMPLE:
                one.sources.append(Source(scaler, not call.scaled, user_place()))

    def before_unscaling(self, scaler: Any, optimizer: Any) -> None:
        """Compare the scaler with those of the gradients that it is about to divide; later ones are not."""
        state = scaler._per_optimizer_states.get(id(optimizer), {})
        is_ready = state.get("stage", OptState.READY) is OptState.READY
        if not is_ready or not self.loop.scaled_losses.has_scaled(scaler):
            return
        one = self._followed.get(getattr(optimizer, "optimizer", optimizer), Followed())
        if not scaler.is_enabled() or self.loop.scale_of(scaler) == 1:
            return
        for source in one.sources:
            by = None if source.scaler is None else source.scaler()
            if source.is_plain:
                self._note("not scaled", source.place, user_place())
            elif by is not None and by is not scaler:
                self._note("other scaler", source.place, user_place())

    def after_step(self, optimizer: Any) -> None:
        """An optimizer was stepped, or its step was skipped: its gradients are used up."""
        stepped = getattr(optimizer, "optimizer", optimizer)
        one = self._followed.get(stepped)
        if one is None:
            return
        one.fresh, one.marks = False, _marks_of(stepped)
        if one.left is not None:
            self._note("not zeroed", one.left, user_place())
            one.left = None

    def _note(self, kind: MisuseKind, place: Place | None, by: Place | None) -> None:
        if place is not None:
            self._wrong.setdefault(kind, []).append((place, by))

    def _watch_zeroing(self, owner: Any) -> None:
        original: Any = owner.zero_grad

        @wraps(original)
        def zero_grad(one: Any, *args: Any, **kwargs: Any) -> None:
            for optimizer, followed in self._followed.items():
                if owner is nn.Module or optimizer is one:
                    followed.forget()
            original(one, *args, **kwargs)

        owner.zero_grad = zero_grad


def _sampled(optimizer: torch.optim.Optimizer) -> list[Tensor | None]:
    """Return gradients of some parameters, spread over an optimizer."""
    parameters = list(parameters_of(optimizer))
    stride = max(1, len(parameters) // _SAMPLE)
    return [p.grad for p in parameters[::stride]]


def _marks_of(optimizer: torch.optim.Optimizer) -> list[Mark]:
    return [_mark(grad) for grad in _sampled(optimizer)]


def _mark(grad: Tensor | None) -> Mark:
    return None if grad is None else (id(grad), grad._version)


_TEXTS: dict[MisuseKind, str] = {
    "not scaled": (
        "The scaler divides these gradients by its scale, but the loss was not multiplied by it, so that "
        "almost nothing is left of them: {place}. Write scaler.scale(loss).backward(). They are used at {by}."
    ),
    "other scaler": (
        "The loss was multiplied by one scaler, and another one divides its gradients: {place}, {by}. Scale "
        "every loss by the scaler that steps its optimizer."
    ),
    "not zeroed": (
        "Gradients of the steps before are still there at {place}, and add up. Call optimizer.zero_grad() in "
        "every step."
    ),
}
