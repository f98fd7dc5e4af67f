"""The updates that an optimizer intends, measured against the 16-bit weights that must hold them.

This is for weights that are updated in 16 bits themselves. Masters in FP32 lose nothing (``MasterWeights``).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from halfguard.numerics.lost_updates import LostUpdates, count_lost, joined
from halfguard.numerics.tensor_rows import TensorRows, lay_out, local_tensor
from halfguard.precision.modes import HALF_DTYPES


@torch.no_grad()
def measure_lost_updates(
    optimizer: Optimizer, *, sample: int | None = None
) -> tuple[list[Tensor], LostUpdates] | None:
    """Measure the last update of every 16-bit weight; call it after ``step`` and before ``zero_grad``.

    ``sample`` is the number of elements to measure in each tensor, at equal distances; None measures all.

    SGD, Adam, AdamW and others with the state of Adam are known; parameters of others are left out. Return
    the parameters with their counts on the device, or None if there are none. There is no host sync, and the
    number of operations does not depend on the number of parameters. Weight decay is not measured.
    """
    found: list[Tensor] = []
    parts: list[LostUpdates] = []
    for group in optimizer.param_groups:
        for parameters in _by_kind(optimizer, group):
            states = [optimizer.state[p] for p in parameters]
            for rows, update in _updates(optimizer, group, parameters, states, sample):
                found += [parameters[i] for i in rows.positions]
                parts.append(count_lost(rows, update, parameters[0].dtype))
    if not parts:
        return None
    return found, joined(list(range(len(found))), parts)


def future_rates(scheduler: Any, steps: int, group: int = 0) -> list[float]:
    """Return the learning rate of a group now and after each of ``steps`` steps of a scheduler.

    The scheduler and its optimizer are not changed: a copy is stepped, over an optimizer without weights.
    """
    optimizer = scheduler.optimizer
    light = SGD([torch.zeros(1) for _ in optimizer.param_groups], lr=0.0)
    light.param_groups = [
        {**{k: v for k, v in own.items() if k != "params"}, "params": [torch.zeros(1)]}
        for own in optimizer.param_groups
    ]
    clone = copy.deepcopy(scheduler, {id(optimizer): light})
    rates = [float(light.param_groups[group]["lr"])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no optimizer steps between these
        for _ in range(steps):
            clone.step()
            rates.append(float(light.param_groups[group]["lr"]))
    return rates


def _by_kind(optimizer: Optimizer, group: dict[str, Any]) -> Iterator[list[Tensor]]:
    """Yield the parameters of a group whose last update is known, by dtype and device."""
    kinds: dict[Any, list[Tensor]] = {}
    for parameter in group["params"]:
        state = optimizer.state.get(parameter, {})
        known = "exp_avg_sq" in state or (isinstance(optimizer, SGD) and parameter.grad is not None)
        if parameter.dtype in HALF_DTYPES and known and parameter.numel():
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    yield from kinds.values()


def _updates(
    optimizer: Optimizer,
    group: dict[str, Any],
    parameters: list[Tensor],
    states: list[dict[str, Any]],
    sample: int | None,
) -> Iterator[tuple[TensorRows, Tensor]]:
    """Yield the parameters in passes, with the update of each in the same layout."""

    def rows_of(tensors: list[Tensor]) -> Iterator[TensorRows]:
        return lay_out(tensors if sample is None else [_thinned(t, sample) for t in tensors])

    if isinstance(optimizer, SGD):
        kept = [None if group["nesterov"] else state.get("momentum_buffer") for state in states]
        directions = [p.grad if m is None else m for p, m in zip(parameters, kept, strict=True)]
        for rows, used in zip(
            rows_of(parameters), rows_of([d for d in directions if d is not None]), strict=True
        ):
            yield rows, -group["lr"] * used.data
        return
    step, (beta1, beta2) = states[0]["step"], group["betas"]
    square = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    moments = (rows_of([state[name] for state in states]) for name in ("exp_avg", square))
    for rows, mean, variance in zip(rows_of(parameters), *moments, strict=True):
        size = (variance.data / (1 - beta2**step)).sqrt() + group["eps"]
        yield rows, -group["lr"] / (1 - beta1**step) * mean.data / size


def _thinned(tensor: Tensor, count: int) -> Tensor:
    """Return about ``count`` elements of a tensor, the same ones for every tensor of its shape."""
    flat = local_tensor(tensor).detach().reshape(-1)
    return flat[:: -(-flat.numel() // count)] if flat.numel() > count else flat
