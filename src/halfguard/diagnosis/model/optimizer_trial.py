"""Whether an optimizer that is not torch's keeps small updates of half weights, found out by stepping it.

An optimizer may hold FP32 copies in its state, add up what rounding has cut off (Kahan), or round at random.
Neither its name nor its first state shows it. So one more of its class is made, for a small half weight, with
the same settings and a rate at which every single update is rounded away.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_STEPS = 64
_PART = 1 / 16  # of the distance between 1 and the next number: what one step asks for
_LEAST = 0.5  # of the whole way must be done


def keeps_small_updates(optimizer: Optimizer, dtype: torch.dtype) -> bool:
    """Return whether small updates add up; False if they do not, or if it cannot be tried."""
    kind = type(optimizer)
    if kind.__module__.startswith("torch.optim") or "lr" not in optimizer.defaults:
        return False
    rate = torch.finfo(dtype).eps * _PART
    weight = nn.Parameter(torch.ones(48, dtype=dtype))
    gradient = torch.tensor([1.0, 1e-5, 0.0]).repeat_interleave(16).to(dtype)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            _step(kind([weight], **_settings(optimizer, rate)), weight, gradient)
    except Exception:  # noqa: BLE001  a class that is made in another way is not judged
        return False
    way = 1 - weight.detach()[:16].float().mean()
    return bool(weight.isfinite().all()) and float(way) >= _LEAST * _STEPS * rate


def _settings(optimizer: Optimizer, rate: float) -> dict[str, Any]:
    """Return the arguments that its class takes, with its values and another rate."""
    taken = inspect.signature(type(optimizer)).parameters
    known = {key: value for key, value in optimizer.defaults.items() if key in taken}
    return known | {"lr": rate} | ({"weight_decay": 0.0} if "weight_decay" in known else {})


def _step(optimizer: Optimizer, weight: nn.Parameter, gradient: Tensor) -> None:
    for _ in range(_STEPS):
        weight.grad = gradient.clone()
        optimizer.step()
