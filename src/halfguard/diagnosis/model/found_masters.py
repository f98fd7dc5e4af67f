"""FP32 copies of a model's half weights that a training loop updates in their place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.precision.modes import HALF_DTYPES


def find_masters(model: nn.Module | None, optimizer: Optimizer) -> dict[int, Tensor]:
    """Return the half weight of each copy in the optimizer, by the id of the copy.

    A copy has the shape of the half weight, more bits, and its values where they are rounded.
    """
    own = [] if model is None else list(model.parameters())
    free: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
    for parameter in own:
        if parameter.requires_grad and parameter.dtype in HALF_DTYPES:
            free[parameter.shape].append(parameter)
    known = set(map(id, own))
    found: dict[int, Tensor] = {}
    for copy in _wide(optimizer) if free else ():
        if id(copy) not in known:
            half = next((one for one in free[copy.shape] if _is_rounded(copy, one)), None)
            if half is not None:
                free[copy.shape] = [one for one in free[copy.shape] if one is not half]
                found[id(copy)] = half
    return found


def _wide(optimizer: Optimizer) -> Iterable[Tensor]:
    held = (p for group in optimizer.param_groups for p in group["params"])
    return (p for p in held if p.dtype in (torch.float32, torch.float64))


def _is_rounded(copy: Tensor, half: Tensor) -> bool:
    same_kind = type(copy.data) is type(half.data) is Tensor and copy.device == half.device
    return same_kind and torch.equal(copy.detach().to(half.dtype), half.detach())
