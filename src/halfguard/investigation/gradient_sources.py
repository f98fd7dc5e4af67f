"""Which backward pass gave gradients to which optimizer, and by what its loss was scaled.

A scaler divides the gradients of its optimizer by its scale. It is wrong if a loss was not scaled, or by
another scaler, or if gradients of steps before are still there.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.investigation.advice import describe_place
from halfguard.investigation.passes import Misused, MisuseKind
from halfguard.investigation.training_loop import BackwardCall, TrainingLoop
from halfguard.replaying.substitution import Place, user_place

_SAMPLE = 16  # parameters of an optimizer whose gradients are looked at
_OFTEN = 3  # steps in which it is wrong
Mark = tuple[int, int] | None  # a gradient and its version


@dataclass
class Source:
    """A backward pass that gave gradients to an optimizer."""

    scaler: weakref.ref[Any] | None
    place: Place | None


@dataclass
class GradientSources:
    """Follows the gradients of all optimizers, from the installation of its sensors on."""

    loop: TrainingLoop
    _sources: dict[int, list[Source]] = field(default_factory=dict)  # by optimizer
    _marks: dict[int, list[Mark]] = field(default_factory=dict)  # before a backward pass
    _fresh: set[int] = field(default_factory=set)  # optimizers that have not stepped since
    # Lines that added gradients to those of a step before.
    _left: dict[int, Place] = field(default_factory=dict)
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
            grads = _sampled(optimizer)
            self._marks[id(optimizer)] = [_mark(grad) for grad in grads]
            if not any(grad is not None for grad in grads):
                self._forget(id(optimizer))
            elif id(optimizer) not in self._fresh and self._sources.get(id(optimizer)):
                with self.loop.unobserved():
                    left = any(grad is not None and bool(grad.any()) for grad in grads)
                place = user_place() if left else None
                if place is not None:
                    self._left.setdefault(id(optimizer), place)

    def after_backward(self, call: BackwardCall) -> None:
        """Note the optimizers whose gradients have changed."""
        if not call.accumulates:
            return
        for optimizer in self.loop.optimizers:
            before = self._marks.get(id(optimizer))
            if before == [_mark(grad) for grad in _sampled(optimizer)]:
                continue
            scaler = None if call.scaler is None else weakref.ref(call.scaler)
            sources = self._sources.setdefault(id(optimizer), [])
            if len(sources) < _SAMPLE:
                sources.append(Source(scaler, user_place()))
            self._fresh.add(id(optimizer))

    def before_scaler_step(self, scaler: Any, optimizer: Any) -> None:
        """Compare the scaler with those of the gradients."""
        one = getattr(optimizer, "optimizer", optimizer)
        if not scaler.is_enabled() or self.loop.scale_of(scaler) == 1:
            return
        for source in self._sources.get(id(one), ()):
            by = None if source.scaler is None else source.scaler()
            if source.scaler is None:
                self._note("not scaled", source.place, user_place())
            elif by is not None and by is not scaler:
                self._note("other scaler", source.place, user_place())

    def after_step(self, optimizer: Any) -> None:
        """An optimizer was stepped, or its step was skipped: its gradients are used up."""
        one = id(getattr(optimizer, "optimizer", optimizer))
        self._fresh.discard(one)
        if one in self._left:
            self._note("not zeroed", self._left.pop(one), user_place())

    def _note(self, kind: MisuseKind, place: Place | None, by: Place | None) -> None:
        if place is not None:
            self._wrong.setdefault(kind, []).append((place, by))

    def _forget(self, optimizer: int | None) -> None:
        for known in self._sources if optimizer is None else (optimizer,):
            self._sources[known] = []
            self._left.pop(known, None)

    def _watch_zeroing(self, owner: Any) -> None:
        original: Any = owner.zero_grad

        @wraps(original)
        def zero_grad(one: Any, *args: Any, **kwargs: Any) -> None:
            self._forget(id(one) if owner is torch.optim.Optimizer else None)
            original(one, *args, **kwargs)

        owner.zero_grad = zero_grad


def _sampled(optimizer: torch.optim.Optimizer) -> list[Tensor | None]:
    """Return gradients of some parameters, spread over an optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    stride = max(1, len(parameters) // _SAMPLE)
    return [p.grad for p in parameters[::stride]]


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
