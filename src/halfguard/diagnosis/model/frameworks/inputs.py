"""The arguments of ``doctor``, and helpers that every framework uses on them."""

from __future__ import annotations

import copy
import os
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map, tree_map_only

from halfguard.diagnosis.model.measured_precision import (
    SHORT_NAMES,
    MeasuredPrecision,
    parse_precision,
)
from halfguard.diagnosis.model.training_setup import join_names
from halfguard.errors import UsageError

CONVERSIONS = {
    "fp32": "model.float()",
    "fp16": "model.half()",
    "bf16": "model.bfloat16()",
    "fp64": "model.double()",
}
DTYPE_NAMES = {short: str(dtype) for dtype, short in SHORT_NAMES.items()}


def conversion_line(asked: str | None, measured: MeasuredPrecision) -> str:
    """Return the line that gives the weights the requested dtype; empty if they have it.

    The line is also needed if most weights have it, but not all: without autocast, the others or casts in the
    model lead to another precision.
    """
    if asked is None:
        return ""
    wanted = parse_precision(asked)
    line = CONVERSIONS.get(wanted.weights, "")
    if wanted.weights != measured.weights:
        return line
    if wanted.autocast == measured.autocast == "off" and asked != measured.name:
        return f"{line}  # all of it, without casts inside"
    return ""


def autocast_line(asked: str | None, measured: MeasuredPrecision, device: str) -> str:
    """Return the line that opens the requested autocast; empty if autocast was as requested everywhere."""
    wanted = "off" if asked is None else parse_precision(asked).autocast
    partial = measured.is_partial
    if asked is None or (wanted == measured.autocast and (wanted == "off" or not partial)):
        return ""
    if wanted != "off":
        return f'with torch.autocast("{device}", dtype={DTYPE_NAMES[wanted]}):  # around the forward pass'
    where = "instead of the one inside the model" if partial else "around the forward pass"
    return f'with torch.autocast("{device}", enabled=False):  # {where}'


def explain_difference(asked: str | None, measured: MeasuredPrecision) -> str:
    """Say how weights and autocast differ from the requested ones."""
    if asked is None:
        return ""
    wanted, facts = parse_precision(asked), []
    if wanted.weights != measured.weights:
        facts.append(f"The trained weights are {measured.weights}.")
    if measured.is_partial:
        wider = join_names(measured.wider_modules)
        facts.append(
            "Less than half of the FLOPs were in 16-bit precision. These were in higher "
            f"precision: {wider}."
        )
    elif wanted.autocast != measured.autocast:
        state = "off" if measured.autocast == "off" else f"on, in {measured.autocast},"
        facts.append(f"Autocast was {state} in the forward pass.")
    if not facts and asked != measured.name:
        facts.append(
            "Autocast was disabled, so some weights have a different dtype, or the model casts to one."
            if measured.autocast == "off"
            else "Autocast was enabled, but it does not cast the matrix products that ran."
        )
    return " ".join(facts)


@dataclass(frozen=True)
class DoctorInputs:
    """The arguments of ``doctor``, apart from the framework's own object."""

    model: nn.Module | None = None
    optimizers: tuple[Optimizer, ...] = ()
    scaler: torch.amp.GradScaler | None = None
    precision: Any = None
    loss: Callable[[Any, Any], Any] | None = None
    batch: Any = None
    checkpoint: Any = None

    @property
    def copied_batch(self) -> Any:
        """The batch with copies of its tensors and containers, since a forward pass may write to them."""
        return tree_map(_copy_leaf, self.batch)

    def require_model(self, owner: str) -> nn.Module:
        """Return the model; raise a UsageError if it is missing, since ``owner`` does not contain one."""
        if self.model is None:
            raise UsageError(
                f"doctor() received {owner}, which does not contain the model.",
                cure="Pass the model as the first argument.",
            )
        return self.model

    def run_forward(self, model: nn.Module, batch: Any) -> Any:
        """Return the loss if there is a loss function, else the output of the model for the batch."""
        if self.loss is not None:
            return self.loss(model, batch)
        if isinstance(batch, Mapping):
            return model(**batch)
        return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _copy_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    if isinstance(leaf, UserDict):  # a tokenizer returns one; tree_map does not open it
        fresh = copy.copy(leaf)
        fresh.data = tree_map(_copy_leaf, leaf.data)
        return fresh
    return leaf


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


@contextmanager
def patch(target: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object during the block, over those of its class."""
    before = {name: vars(target)[name] for name in values if name in vars(target)}
    vars(target).update(values)
    try:
        yield
    finally:
        for name in values:
            del vars(target)[name]
        vars(target).update(before)


def is_a(value: object, name: str, *packages: str) -> bool:
    """Return whether the value's class, or a base of it, has this name and is from one of the packages."""
    bases = type(value).__mro__
    return any(b.__name__ == name and b.__module__.split(".")[0] in packages for b in bases)


def check_model(model: Any) -> nn.Module | None:
    """Return the model; raise a UsageError if it is not a module."""
    if model is None or isinstance(model, nn.Module):
        return model
    raise UsageError(
        f"doctor() received a {type(model).__name__} as the model, which is not a torch.nn.Module.",
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
                f"doctor() received a {type(one).__name__} as an optimizer, but it is not an "
                "optimizer.",
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
        f"The checkpoint {str(checkpoint)!r} does not exist.",
        cure="Pass a file, a folder, or the saved mapping itself.",
    )


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups")  # some wrappers do not inherit from torch.optim.Optimizer


def _unwrap(optimizer: Any) -> Optimizer:
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer
