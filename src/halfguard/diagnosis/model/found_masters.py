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

    A copy has the shape of the half weight, more bits, and its values where they are rounded. Before the
    first step it has exactly its values: copies are made of half weights. What has more digits by then is
    an old parameter of a model that was made half after the optimizer was built.
    """
    held = [p for group in optimizer.param_groups for p in group["params"]]
    own = [] if model is None else list(model.parameters())
    free: defaultdict[torch.Size, list[Tensor]] = defaultdict(list)
    for parameter in _leave_out(own, held):
        if parameter.requires_grad and parameter.dtype in HALF_DTYPES:
            free[parameter.shape].append(parameter)
    found: dict[int, Tensor] = {}
    for copy in _leave_out(held, own) if free else ():
        half = next((one for one in free[copy.shape] if _is_rounded(copy, one)), None)
        if half is not None:
            if not optimizer.state and not torch.equal(copy.detach(), half.detach().to(copy.dtype)):
                return {}
            free[copy.shape] = [one for one in free[copy.shape] if one is not half]
            found[id(copy)] = half
    return found


def _leave_out(some: Iterable[Tensor], others: Iterable[Tensor]) -> list[Tensor]:
    known = set(map(id, others))
    return [one for one in some if id(one) not in known]


def _is_rounded(copy: Tensor, half: Tensor) -> bool:
    same_kind = type(copy.data) is type(half.data) is Tensor and copy.device == half.device
    is_wide = copy.dtype in (torch.float32, torch.float64)
    return same_kind and is_wide and torch.equal(copy.detach().to(half.dtype), half.detach())
