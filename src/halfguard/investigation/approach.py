"""Run the script again, at full speed, up to the step of the event; only then something begins.

The place to begin is the end of the backward pass before the event, so that the optimizer's step lies inside.
For the first step it is the first call of a module, or the script's first line. On the way the losses
are compared with those of the first pass, bit by bit.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from halfguard.investigation.finite import first_number
from halfguard.investigation.passes import (
    Ended,
    Event,
    PassPlan,
    first_difference,
    read_losses,
)
from halfguard.investigation.training_loop import BackwardCall, LoopObserver, TrainingLoop


class Approach(LoopObserver):
    """Waits for the step of an event, and begins there."""

    def __init__(self, plan: PassPlan, loop: TrainingLoop, event: Event) -> None:
        self.plan, self.loop, self.event = plan, loop, event
        self.has_begun = False
        self._losses: list[float] = []

    @abstractmethod
    def begin(self, first: nn.Module | None, args: Any) -> None:
        """Begin at the step; ``first`` is a module that is being called, with its arguments."""

    @abstractmethod
    def finish(self, error: str, ended: Ended) -> NoReturn:
        """Answer after the script's end."""

    def prepare(self) -> None:
        """Begin at once, or arrange the beginning, if the event is in the first step."""
        if self.plan.start == "script":
            self._begin(None, ())
        elif self.plan.start == "first module" or self.event.backward == 0:
            self._wait_for_module()

    def _wait_for_module(self) -> None:
        def enter(module: nn.Module, args: Any) -> None:
            if torch.is_grad_enabled() and not self.has_begun:
                handle.remove()
                self._begin(module, args)

        handle = register_module_forward_pre_hook(enter)

    def _begin(self, first: nn.Module | None, args: Any) -> None:
        self.has_begun = True
        self.begin(first, args)

    def before_backward(self, call: BackwardCall) -> None:
        if not self.has_begun and call.accumulates:
            with self.loop.unobserved():
                self._losses.append(first_number(call.losses))

    def between_steps(self) -> None:
        if not self.has_begun and self.loop.backward == self.event.backward:
            self._begin(None, ())

    @property
    def differs_at(self) -> int | None:
        """The first loss on the way that is not that of the first pass."""
        return first_difference(self._losses, read_losses(self.plan.losses))
