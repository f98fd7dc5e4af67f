"""Calls that train wrongly without a bad number: clipping of scaled gradients, a schedule that runs ahead."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from halfguard.investigation.advice import describe_place
from halfguard.investigation.training_loop import TrainingLoop
from halfguard.replaying.substitution import Place, user_place

_CLIPPINGS = ("clip_grad_norm_", "clip_grad_value_")
_SMALL = 0.01  # of the loss scale: a limit below it was not multiplied by the scale
_FEWEST, _MOST_AHEAD = (
    5,
    0.1,
)  # moves, and their share of steps; a scale that finds its level skips fewer


class Misuse:
    """Notes such calls, from the installation of its sensors on."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._clipped: tuple[Place, float, float] | None = None  # line, limit and loss scale
        self._schedule: Place | None = None
        self._ahead = 0  # moves of a schedule after a step that was skipped

    def install(self) -> None:
        """Put the sensors on torch; they stay for the life of the process."""
        for name in _CLIPPINGS:
            self._watch_clipping(name)
        self._watch_schedules()

    def sentences(self) -> tuple[str, ...]:
        """Return what is wrong, each with its line."""
        told = []
        if self._clipped is not None:
            place, limit, scale = self._clipped
            told.append(
                f"Gradients were clipped to {limit:g} while they were still multiplied by the loss scale of "
                f"{scale:g}, so that almost nothing was left of them: {describe_place(place)}. Call "
                "scaler.unscale_(optimizer) before it, or let the framework clip."
            )
        steps = self._loop.scaler_steps
        many = self._ahead >= _FEWEST and self._ahead > _MOST_AHEAD * steps
        if self._schedule is not None and many:
            told.append(
                f"The schedule moved {self._ahead} times after a step that the scaler had skipped, in "
                f"{steps} steps: {describe_place(self._schedule)}. Move it only if the optimizer has stepped "
                "(scaler.get_scale() is not lower than before)."
            )
        return tuple(told)

    def _watch_clipping(self, name: str) -> None:
        original: Any = getattr(torch.nn.utils, name)
        signature = inspect.signature(original)

        @wraps(original)
        def clip(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            if self._clipped is None and self._loop.holds_scaled:
                limit = float(list(signature.bind(*args, **kwargs).arguments.values())[1])
                place, scale = user_place(), self._loop.scale
                cut = norm is None or not float(norm) <= limit
                if place is not None and cut and limit < _SMALL * scale:
                    self._clipped = place, limit, scale
            return norm

        setattr(torch.nn.utils, name, clip)

    def _watch_schedules(self) -> None:
        original: Any = LRScheduler.step

        @wraps(original)
        def step(schedule: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if self._loop.was_skipped(schedule.optimizer):
                self._ahead += 1
                self._schedule = self._schedule or user_place()
            original(schedule, *args, **kwargs)

        setattr(LRScheduler, "step", step)  # noqa: B010
