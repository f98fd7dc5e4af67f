"""The parameters that optimizers update."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield every parameter of every group."""
    return (p for group in optimizer.param_groups for p in group["params"])
