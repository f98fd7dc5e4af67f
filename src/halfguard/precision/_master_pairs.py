"""Pairs of a half parameter and its FP32 master, and functions that move data between them.

Every function here takes the whole list and passes it to torch in a fixed number of operations,
without waiting for the device. Changes since the last call are detected from the identity and the
version counter of tensors, which are plain Python values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from halfguard.errors import UsageError


@dataclass(slots=True)
class MasterPair:
    """A half parameter, its master, and the state in which halfguard last left the half."""

    half: Tensor
    master: Tensor
    half_version: int
    """Version of ``half`` when it last was the rounded master."""
    moved: Tensor | None = None
    """The half gradient that was moved to the master and then zeroed."""
    moved_version: int = 0
    """The version of that gradient after it was zeroed."""

    @classmethod
    def of(cls, half: Tensor) -> MasterPair:
        """Copy a half parameter to FP32, which is exact."""
        return cls(half, torch.nn.Parameter(half.detach().float()), half._version)

    def new_gradient(self) -> Tensor | None:
        """Return the gradient of the last backward pass, or None if there is no new one.

        A half gradient that was moved is zeroed and stays assigned. If it is still there, more
        micro-batches may have been added to it. If it is None or another tensor, the user has cleared
        it meanwhile, perhaps with ``model.zero_grad()``, and the master's gradient is cleared as well.
        """
        grad = self.half.grad
        if grad is not None and grad is self.moved:
            return None if grad._version == self.moved_version else grad
        if self.moved is not None:
            self.moved = self.master.grad = None
        return grad


@torch.no_grad()
def collect_gradients(pairs: Sequence[MasterPair]) -> None:
    """Move gradients from halves to masters; infinities and NaN are kept."""
    pending = [(pair, grad) for pair in pairs if (grad := pair.new_gradient()) is not None]
    if not pending:
        return
    grads = [_dense(grad) for _, grad in pending]
    # Any out-of-place operation on the list allocates FP32 tensors of the right shapes and layouts
    # in one call, where empty_like needs one call per parameter. The values are overwritten.
    wide = torch._foreach_neg([pair.master for pair, _ in pending])
    torch._foreach_copy_(wide, grads)
    torch._foreach_zero_(grads)
    sums: list[Tensor] = []
    addends: list[Tensor] = []
    for (pair, grad), widened in zip(pending, wide, strict=True):
        pair.moved, pair.moved_version = grad, grad._version
        if pair.master.grad is None:
            pair.master.grad = widened
        else:
            sums.append(pair.master.grad)
            addends.append(widened)
    if sums:
        torch._foreach_add_(sums, addends)


@torch.no_grad()
def write_back(pairs: Sequence[MasterPair]) -> None:
    """Round the masters into the halves."""
    if not pairs:
        return
    torch._foreach_copy_([pair.half for pair in pairs], [pair.master for pair in pairs])
    for pair in pairs:
        pair.half_version = pair.half._version


@torch.no_grad()
def copy_outside_changes(pairs: Sequence[MasterPair]) -> None:
    """Copy half weights that were changed from outside since ``write_back`` to the masters.

    Where a half is still its master rounded (weights swapped for evaluation and back, or loaded after
    the optimizer), the master keeps its full precision.
    """
    for pair in pairs:
        if pair.half._version != pair.half_version:
            same = pair.master.to(pair.half.dtype) == pair.half
            pair.master.copy_(torch.where(same, pair.master, pair.half.float()))
            pair.half_version = pair.half._version


def clear_half_gradients(pairs: Sequence[MasterPair]) -> None:
    """Drop the gradients of the halves, moved or not."""
    for pair in pairs:
        pair.half.grad = pair.moved = None


def _dense(grad: Tensor) -> Tensor:
    if grad.layout is torch.strided:
        return grad
    raise UsageError(
        f"The gradient of a half parameter of shape {tuple(grad.shape)} is sparse, and master "
        "weights cannot sum it in FP32. No gradient was moved.",
        cure="Build the embedding with sparse=False, or keep it in FP32: embedding.float().",
    )
