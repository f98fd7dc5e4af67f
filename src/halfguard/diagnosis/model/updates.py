"""The share of an optimizer's update that rounding to a half weight loses, estimated before training.

Optimizers that divide by the size of the gradient change every weight by about the learning rate, whatever
the gradient is. With noisy gradients and a momentum of b the change is sqrt((1 - b) / (1 + b)) of it, a
quarter for Adam; Lion takes the sign last and changes it by the full rate. SGD multiplies the gradient, so
the gradients of a batch must have been measured. Optimizers that find their rate themselves, as Prodigy
does, are not judged, nor is a rate that CyclicLR will raise.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CyclicLR

from halfguard.diagnosis.model.training_setup import MeasuredGradients, OptimizerParameter
from halfguard.numerics.lost_updates import is_rounded_away
from halfguard.numerics.tensor_rows import local_tensor

# Divide by the size of the gradient.
_NORMALISED = ("adam", "rmsprop", "adagrad", "adafactor", "lamb", "rprop")
_OWN_RATE = ("prodigy", "dadapt")  # multiply the rate by an estimate, which begins very small
MUCH = 0.1  # of the updates; in runs that train well it was below 0.01 at the first step
_CHUNK = 1 << 20  # elements that are compared at a time


def lost_share(
    parameters: Iterable[OptimizerParameter], gradients: MeasuredGradients | None
) -> float | None:
    """Return how much of all updates, by their size, changes no weight; None if it cannot be known."""
    wanted = lost = 0.0
    try:
        for one in parameters:
            rate = _rate(one)
            if rate is None or (needs_gradients(one) and gradients is None):
                return None
            for weight, size in _chunks(one, rate, gradients):
                up, down = (is_rounded_away(weight.float(), x, weight.dtype) for x in (size, -size))
                wanted += float(size.sum())
                lost += float(size[up & down].sum())
    except (RuntimeError, MemoryError):  # out of memory
        return None
    return lost / wanted if wanted else None


def needs_gradients(one: OptimizerParameter) -> bool:
    """Return whether the size of an update depends on the size of the gradient."""
    return _name(one).endswith("sgd") and not _finds_its_rate(one)


def _chunks(
    one: OptimizerParameter, rate: float, gradients: MeasuredGradients | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pieces of a weight with the size of their change in a typical step."""
    pieces = torch.split(local_tensor(one.tensor.detach()).reshape(-1), _CHUNK)
    if not needs_gradients(one) or gradients is None:
        for piece in pieces:
            yield piece, torch.full_like(piece, rate, dtype=torch.float32)
        return
    gradient = gradients.of.get(id(one.weight))
    if gradient is not None:  # otherwise the loss does not depend on it
        for piece, part in zip(
            pieces, torch.split(local_tensor(gradient).reshape(-1), _CHUNK), strict=True
        ):
            yield piece, (part.float() * rate).abs()


def _rate(one: OptimizerParameter) -> float | None:
    """Return the change of a weight, for SGD per unit of its gradient; None if it is not known."""
    rate, name, betas = _learning_rate(one), _name(one), one.group.get("betas")
    if rate is None or _finds_its_rate(one):
        return None
    if "lion" in name:
        return rate
    if betas is not None or any(known in name for known in _NORMALISED):
        momentum = float(betas[0]) if betas is not None else 0.0
        return rate * math.sqrt((1 - momentum) / (1 + momentum))
    return rate / (1 - float(one.group.get("momentum") or 0.0)) if needs_gradients(one) else None


def _name(one: OptimizerParameter) -> str:
    return type(one.optimizer).__name__.lower()


def _finds_its_rate(one: OptimizerParameter) -> bool:
    return "d" in one.group or any(known in _name(one) for known in _OWN_RATE)


def _learning_rate(one: OptimizerParameter) -> float | None:
    """Return the highest rate that is known: a warmup starts below the rate that was asked for."""
    if "initial_lr" in one.group and "max_lr" not in one.group and _is_cycled(one):
        return None
    rates = [one.group.get(name) for name in ("lr", "max_lr", "initial_lr")]
    known = [float(rate) for rate in rates if isinstance(rate, int | float | Tensor)]
    return max(known) if known and max(known) > 0 else None


def _is_cycled(one: OptimizerParameter) -> bool:
    """Return whether a CyclicLR raises the rate; its highest rate is not in the group, as OneCycleLR's is."""
    if "max_momentum" in one.group:
        return True
    schedulers = (x for x in gc.get_objects() if CyclicLR in type(x).__mro__)
    return any(getattr(scheduler, "optimizer", None) is one.optimizer for scheduler in schedulers)
