"""The parameters that optimizers update, and their names as the user wrote them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import Tensor
from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield every parameter of every group."""
    return (p for group in optimizer.param_groups for p in group["params"])


COMPILED = "_orig_mod"  # torch.compile
WRAPPERS = ("module", COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def without_wrappers(path: str, wrappers: Collection[str] = WRAPPERS) -> str:
    """Return a dotted path without the parts that DDP, FSDP, checkpointing and torch.compile add."""
    return ".".join(part for part in path.split(".") if part not in wrappers)
