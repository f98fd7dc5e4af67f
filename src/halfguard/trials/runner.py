"""A step that can be run any number of times: in half, with what is changed, and in FP32, to compare with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from halfguard.numerics.finite import all_finite
from halfguard.numerics.tensor_rows import local_tensor


@dataclass(frozen=True)
class TrialGradients:
    """The gradients of a trial on this rank, unscaled, in the order of parameters."""

    finite: bool
    values: tuple[Tensor | None, ...]

    def on_host(self) -> TrialGradients:
        """Return the same gradients in host memory, where they take none of the device."""
        values = (None if value is None else value.cpu() for value in self.values)
        return TrialGradients(self.finite, tuple(values))


def do_nothing() -> None:
    """Take no gradients."""


class Runner(ABC):
    """Runs a step on ``model``; nothing of it changes. ``half`` is the dtype of its products."""

    model: nn.Module
    half: torch.dtype

    @abstractmethod
    def in_half(self, scale: float) -> Callable[..., Tensor]:
        """Return a function that runs forward and scaled backward passes; it returns the loss.

        It calls its argument ``collect`` while gradients have the dtype in which they were computed.
        """

    @abstractmethod
    def in_fp32(self) -> Callable[..., Tensor]:
        """Return the same function for FP32, without a loss scale."""

    @abstractmethod
    def unchanged(self) -> AbstractContextManager[None]:
        """Restore after the block what a step changes."""

    def gradients(self, run: Callable[..., Tensor], scale: float = 1.0) -> TrialGradients:
        """Run a step; return its gradients, divided by ``scale``. This reads the device."""
        collected: list[Tensor | None] = []

        def collect() -> None:
            for p in self.model.parameters():
                grad, p.grad = p.grad, None  # one by one, so that there are no two of all
                collected.append(
                    None if grad is None else local_tensor(grad).detach().float() / scale
                )

        with self.unchanged():
            loss = run(collect)
        finite = all_finite([loss.detach(), *(grad for grad in collected if grad is not None)])
        return TrialGradients(finite, tuple(collected))

    @contextmanager
    def rounded_weights(self) -> Iterator[None]:
        """Run the block with the model's weights rounded to half; then they are exactly as before."""
        # Through data: the version counters that others watch do not change.
        weights = [local_tensor(p).data for p in self.model.parameters() if p.is_floating_point()]
        copies = [weight.to("cpu", copy=True) for weight in weights]
        try:
            for weight in weights:
                weight.copy_(weight.to(self.half))
            yield
        finally:
            for weight, copy in zip(weights, copies, strict=True):
                weight.copy_(copy)
