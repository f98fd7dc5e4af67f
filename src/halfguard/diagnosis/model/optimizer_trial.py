"""Whether an optimizer that is not torch's keeps small updates of half weights, found out by stepping it.

An optimizer may hold FP32 copies in its state, add up what rounding has cut off (Kahan), or round at random.
Neither its name nor its first state shows it. So one more of its class is made, for a small half weight, with
the same settings and a rate at which every single update is rounded away. How far one step goes at a rate
differs (momentum of 0.9 multiplies it by 10), so the same steps on an FP32 weight are measured first.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_STEPS = 64
_PART = 1 / 16  # of the distance between 1 and the next number: the longest step
_LEAST = 0.5  # of the way of an FP32 weight must be done
_PLAIN = (bool, int, float, str, tuple, type(None))


def keeps_small_updates(optimizer: Optimizer, dtype: torch.dtype) -> bool:
    """Return whether small updates add up; False if they do not, or if it cannot be tried."""
    defaults = getattr(optimizer, "defaults", None)
    if type(optimizer).__module__.startswith("torch.optim"):
        return False
    if not isinstance(defaults, Mapping) or "lr" not in defaults:
        return False
    longest = torch.finfo(dtype).eps * _PART
    try:
        with torch.inference_mode(False), torch.enable_grad():
            step = float(_run(optimizer, longest, torch.float32).diff().abs().max())
            rate = longest * longest / step
            exact = _run(optimizer, rate, torch.float32)
            way = float(exact[0] - exact[-1])
            half = _run(optimizer, rate, dtype)
            done = float(half[0] - half[-1])
            stays_small = float(exact.diff().abs().max()) <= 2 * longest
    except Exception:  # noqa: BLE001  a class that is made in another way is not judged
        return False
    return stays_small and way > 0 and done >= _LEAST * way


def _run(optimizer: Optimizer, rate: float, dtype: torch.dtype) -> Tensor:
    """Return the mean of a weight before the first step and after each one."""
    weight = nn.Parameter(torch.ones(48, dtype=dtype))
    gradient = torch.tensor([1.0, 1e-5, 0.0]).repeat_interleave(16).to(dtype)
    twin = type(optimizer)([weight], **_settings(optimizer, rate))
    means = [torch.ones((), dtype=torch.float64)]
    for _ in range(_STEPS):
        weight.grad = gradient.clone()
        twin.step()
        means.append(weight.detach()[:16].double().mean())
    if not weight.isfinite().all():
        raise ValueError("the weight is not finite")
    return torch.stack(means)


def _settings(optimizer: Optimizer, rate: float) -> dict[str, Any]:
    """Return the arguments that its class takes, with its values and another rate."""
    taken = inspect.signature(type(optimizer)).parameters
    plain = {k: value for k, value in vars(optimizer).items() if isinstance(value, _PLAIN)}
    known = {k: value for k, value in (plain | optimizer.defaults).items() if k in taken}
    return known | {"lr": rate} | ({"weight_decay": 0.0} if "weight_decay" in known else {})
