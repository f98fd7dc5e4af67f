"""What ``doctor`` is called with, made sure of before anything is run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from halfguard.errors import UsageError


def checked_model(model: Any) -> nn.Module | None:
    """The model, if it is one."""
    if model is None or isinstance(model, nn.Module):
        return model
    raise UsageError(
        f"doctor() was given a {type(model).__name__} as the model, which is not a torch.nn.Module.",
        cure="Pass the model itself as the first argument; a Trainer, an Accelerator or a guard is "
        "passed as trainer=.",
    )


def checked_optimizers(given: Any) -> tuple[Optimizer, ...]:
    """The optimizers without the wrappers of Accelerate and Lightning: none, one or several."""
    if given is None:
        return ()
    if _is_optimizer(given):
        return (_unwrapped(given),)
    several = (
        given if isinstance(given, Iterable) and not isinstance(given, Mapping | str) else (given,)
    )
    optimizers = tuple(several)
    for one in optimizers:
        if not _is_optimizer(one):
            raise UsageError(
                f"doctor() was given a {type(one).__name__} as an optimizer, which it is not.",
                cure="Pass the optimizer that holds them: torch.optim.AdamW(model.parameters())."
                if isinstance(one, nn.Parameter)
                else "Pass one torch.optim.Optimizer, a list of them (of a dict, its values()), or None.",
            )
    return tuple(map(_unwrapped, optimizers))


def checked_checkpoint(checkpoint: Any) -> Any:
    """The mapping, file or folder, if it is there."""
    if checkpoint is None or isinstance(checkpoint, Mapping):
        return checkpoint
    if isinstance(checkpoint, str | os.PathLike) and Path(checkpoint).exists():
        return checkpoint
    raise UsageError(
        f"There is no checkpoint {str(checkpoint)!r}.",
        cure="Pass a file, a folder, or what was saved as a mapping.",
    )


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups")  # some wrappers are no torch.optim.Optimizer


def _unwrapped(optimizer: Any) -> Optimizer:
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer
