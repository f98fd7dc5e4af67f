"""Half weights whose small updates are kept: by FP32 copies, or by an optimizer that adds them up.

An optimizer that is not torch's may hold FP32 copies in its state, add up what rounding has cut off (Kahan),
or round at random. Neither its name nor its first state shows it. So one more of its class is made, for a
small half weight, with the same settings and a rate at which every single update is rounded away. How far one
step goes at a rate differs (momentum of 0.9 multiplies it by 10), so the same steps on an FP32 weight are
measured first.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.precision.modes import HALF_DTYPES
from halfguard.step.parameters import parameters_of

_STEPS = 64
_PART = 1 / 16  # of the distance between 1 and the next number: the longest step
_LEAST = 0.5  # of the way of an FP32 weight must be done
_PLAIN = (bool, int, float, str, tuple, type(None))


def find_masters(model: nn.Module | None, optimizer: Optimizer) -> dict[int, Tensor]:
    """Return the half weight of each copy in the optimizer, by the id of the copy.

    A copy has the shape of the half weight, more bits, and its values where they are rounded. Before the
    first step it has exactly its values: copies are made of half weights. What has more digits by then is
    an old parameter of a model that was made half after the optimizer was built.
    """
    held = list(parameters_of(optimizer))
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
