"""The micro-batches of one step: what they were, and what is needed to repeat them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from halfguard.errors import UsageError
from halfguard.guard.batch_checks import all_finite, describe, every_label_ignored

# The model as Any: a user's function may ask for its own class.
LossFunction = Callable[[Any, Any], "Tensor | Mapping[str, Any]"]


@dataclass(frozen=True)
class MicroBatch:
    """One batch of a step; ``loss_fn`` and ``rng`` are there in the callable form only."""

    batch: Any
    about: Any = None
    loss_fn: LossFunction | None = None
    rng: dict[str, Any] | None = None


@dataclass
class Window:
    """A step from its first forward pass to its decision."""

    loss: Tensor | None = None  # summed over micro-batches, each divided by their number
    micro_batches: list[MicroBatch] = field(default_factory=list)
    held_back: bool = False  # its gradients lie on each rank, for the last micro-batch to reduce

    def add(self, part: Tensor, micro_batch: MicroBatch) -> None:
        """Note one micro-batch with its part of the loss, which must be free of its graph."""
        self.loss = part if self.loss is None else self.loss + part
        self.micro_batches.append(micro_batch)

    @property
    def own_loss(self) -> float:
        """The loss as this rank saw it; reads the device."""
        return float("nan") if self.loss is None else self.loss.item()

    def is_sound(self, ignore_index: int) -> bool:
        """Whether there is something to learn from in every batch; reads the device, so ask if in doubt."""
        batches = [micro.batch for micro in self.micro_batches]
        return all(all_finite(b) and not every_label_ignored(b, ignore_index) for b in batches)

    def descriptions(self) -> tuple[str, ...]:
        """What the batches say of themselves."""
        return tuple(describe(micro.batch, micro.about) for micro in self.micro_batches)


def loss_of(result: Tensor | Mapping[str, Any]) -> Tensor:
    """The loss in what a loss function returned."""
    loss = result["loss"] if isinstance(result, Mapping) else result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"The loss must be a tensor with one element, not {shape}.",
            cure="Return loss.mean(), or a mapping with such a 'loss', from loss_fn(model, batch).",
        )
    if not loss.requires_grad:
        raise UsageError(
            "The loss has no graph behind it, so that backward() would reach no parameter.",
            cure="Was it rebuilt from a number (torch.tensor(loss.item())), detached, or computed "
            "under torch.no_grad()?",
        )
    return loss if loss.dim() == 0 else loss.reshape(())
