"""The parameters that optimizers update, and their names as the user wrote them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from torch import Tensor
from torch.optim import Optimizer


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield every parameter of every group."""
    return (p for group in optimizer.param_groups for p in group["params"])


def has_gradients(optimizer: Optimizer) -> bool:
    """Return whether a parameter of the optimizer has a gradient."""
    return any(p.grad is not None for p in parameters_of(optimizer))


def is_inside(path: str, other: str) -> bool:
    """Return whether a module is inside another one; no module is inside itself."""
    return path != other and (not other or path.startswith(f"{other}."))


def is_covered(path: str, others: Iterable[str]) -> bool:
    """Return whether a module is one of others, or inside one."""
    return any(path == other or is_inside(path, other) for other in others)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that are inside no other of ``paths``."""
    unique = list(dict.fromkeys(paths))
    return tuple(path for path in unique if not any(is_inside(path, other) for other in unique))


COMPILED = "_orig_mod"  # torch.compile
WRAPPERS = ("module", COMPILED, "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def without_wrappers(path: str, wrappers: Collection[str] = WRAPPERS) -> str:
    """Return a dotted path without the parts that DDP, FSDP, checkpointing and torch.compile add."""
    return ".".join(part for part in path.split(".") if part not in wrappers)
