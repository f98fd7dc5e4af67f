"""Check the arguments of ``doctor`` before anything is run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from halfguard.errors import UsageError


def check_model(model: Any) -> nn.Module | None:
    """Return the model; raise a UsageError if it is not a module."""
    if model is None or isinstance(model, nn.Module):
        return model
    raise UsageError(
        f"doctor() was given a {type(model).__name__} as the model, which is not a torch.nn.Module.",
        cure="Pass the model itself as the first argument. Pass a Trainer, an Accelerator or a guard as "
        "trainer=.",
    )


def check_optimizers(given: Any) -> tuple[Optimizer, ...]:
    """Return the optimizers without the wrappers of Accelerate and Lightning: none, one or several."""
    if given is None:
        return ()
    if _is_optimizer(given):
        return (_unwrap(given),)
    several = isinstance(given, Iterable) and not isinstance(given, Mapping | str)
    optimizers = tuple(given) if several else (given,)
    for one in optimizers:
        if not _is_optimizer(one):
            raise UsageError(
                f"doctor() was given a {type(one).__name__} as an optimizer, which it is not.",
                cure="Pass the optimizer of these parameters: torch.optim.AdamW(model.parameters())."
                if isinstance(one, nn.Parameter)
                else "Pass one torch.optim.Optimizer, a list of them (for a dict, its values()), or None.",
            )
    return tuple(map(_unwrap, optimizers))


def check_checkpoint(checkpoint: Any) -> Any:
    """Return the checkpoint; raise a UsageError if there is no such file or folder."""
    if checkpoint is None or isinstance(checkpoint, Mapping):
        return checkpoint
    if isinstance(checkpoint, str | os.PathLike) and Path(checkpoint).exists():
        return checkpoint
    raise UsageError(
        f"There is no checkpoint {str(checkpoint)!r}.",
        cure="Pass a file, a folder, or the saved mapping itself.",
    )


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups")  # some wrappers do not inherit from torch.optim.Optimizer


def _unwrap(optimizer: Any) -> Optimizer:
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer
