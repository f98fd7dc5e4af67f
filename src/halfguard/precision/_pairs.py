"""A half parameter and its FP32 master, and the three ways in which data moves between them.

Every function here takes the whole list and hands it to torch in a fixed number of operations,
without waiting for the device. What has changed since the last time is read from the identity and
the version of tensors, which are plain Python values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.errors import UsageError


@dataclass(slots=True)
class Pair:
    """A half parameter, its master, and how halfguard left the half and its gradient."""

    half: Tensor
    master: Tensor
    written: int
    """Version of ``half`` when it was last known to be the master, rounded."""
    drained: Tensor | None = None
    """The half gradient that was moved into the master, and is zero since."""
    drained_at: int = 0
    """Its version at that moment."""

    @classmethod
    def of(cls, half: Tensor) -> Pair:
        """Widen a half parameter, which is exact."""
        return cls(half, torch.nn.Parameter(half.detach().float()), half._version)

    def new_gradient(self) -> Tensor | None:
        """Return what the last backward pass left, or None; forget what the user has cleared.

        A half gradient that is moved is zeroed and stays in its place. Is it still there, more
        micro-batches may have been added to it. Is it gone or another tensor, somebody has cleared
        it in between, perhaps with ``model.zero_grad()``, and the master's gradient goes as well.
        """
        grad = self.half.grad
        if grad is not None and grad is self.drained:
            return None if grad._version == self.drained_at else grad
        if self.drained is not None:
            self.drained = self.master.grad = None
        return grad


@torch.no_grad()
def collect(pairs: Sequence[Pair]) -> None:
    """Move gradients from halves to masters; infinities and NaN stay what they are."""
    pending = [(pair, grad) for pair in pairs if (grad := pair.new_gradient()) is not None]
    if not pending:
        return
    grads = [_dense(grad) for _, grad in pending]
    # Any out-of-place operation on the list allocates FP32 tensors of the right shapes and layouts
    # in one call, where empty_like would take one a parameter. The values are overwritten.
    wide = torch._foreach_neg([pair.master for pair, _ in pending])
    torch._foreach_copy_(wide, grads)
    torch._foreach_zero_(grads)
    sums: list[Tensor] = []
    addends: list[Tensor] = []
    for (pair, grad), widened in zip(pending, wide, strict=True):
        pair.drained, pair.drained_at = grad, grad._version
        if pair.master.grad is None:
            pair.master.grad = widened
        else:
            sums.append(pair.master.grad)
            addends.append(widened)
    if sums:
        torch._foreach_add_(sums, addends)


@torch.no_grad()
def write_back(pairs: Sequence[Pair]) -> None:
    """Round the masters into the halves."""
    if not pairs:
        return
    torch._foreach_copy_([pair.half for pair in pairs], [pair.master for pair in pairs])
    for pair in pairs:
        pair.written = pair.half._version


@torch.no_grad()
def follow_outside_writes(pairs: Sequence[Pair]) -> None:
    """Take over weights that somebody else has written since ``write_back``.

    Where a written half still is its master rounded (weights swapped out for evaluation and back, or
    loaded after the optimizer), the master keeps its finer digits.
    """
    for pair in pairs:
        if pair.half._version != pair.written:
            ours = pair.master.to(pair.half.dtype) == pair.half
            pair.master.copy_(torch.where(ours, pair.master, pair.half.float()))
            pair.written = pair.half._version


def clear(pairs: Sequence[Pair]) -> None:
    """Drop the gradients of the halves, collected or not."""
    for pair in pairs:
        pair.half.grad = pair.drained = None


def _dense(grad: Tensor) -> Tensor:
    if grad.layout is torch.strided:
        return grad
    raise UsageError(
        f"the gradient of a half parameter of shape {tuple(grad.shape)} is sparse, and master "
        "weights cannot sum it in FP32. No gradient was moved.",
        cure="Build the embedding with sparse=False, or keep it in FP32: embedding.float().",
    )
