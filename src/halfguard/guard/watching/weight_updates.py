"""Updates of 16-bit weights that round to nothing, and the step at which the schedule freezes a layer.

The optimizer is measured right after it has stepped, by a hook that exists during sampled steps only.
Weights in FP32, and masters in FP32 (``MasterWeights``), lose nothing and are not measured.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from halfguard.numerics.lost_updates import (
    LostUpdates,
    UpdateMargins,
    count_lost,
    freezing_step,
    joined,
)
from halfguard.numerics.tensor_rows import TensorRows, lay_out, local_tensor
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.watch import LayerUpdates
from halfguard.step.parameters import parameters_of, without_wrappers

# Updates are measured against the 16-bit weights that must hold them, for weights that are updated in 16
# bits themselves. Masters in FP32 lose nothing (``MasterWeights``).


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


AHEAD = 1000  # steps of the schedule to look at, or five intervals if these are more
SAMPLE = 4096  # elements of each weight
LARGE = 0.01  # of all 16-bit weights: norms and biases are shown, and not warned about
ENDED = 1e-3  # of the highest rate: there the schedule is at its end
WASTED = 0.2  # of all steps to the end: as long may a layer be frozen


@dataclass
class MeasuredUpdates:
    """What the optimizers did at one step, still on the device."""

    parts: list[tuple[Optimizer, list[Tensor], LostUpdates]] = field(default_factory=list)

    def measure(self, optimizer: Optimizer) -> None:
        """Measure the last step of an optimizer."""
        found = measure_lost_updates(optimizer, sample=SAMPLE)
        if found is not None:
            self.parts.append((optimizer, *found))


class WeightUpdates:
    """Measures the optimizers with 16-bit weights, if there are any."""

    def __init__(
        self, model: nn.Module, optimizers: Sequence[Optimizer], schedulers: Sequence[Any]
    ) -> None:
        self._optimizers = optimizers  # the guard may adopt others
        self._schedulers = schedulers
        self._rates: dict[Optimizer, PlannedRates] = {}
        self._module_of = {
            id(p): without_wrappers(name).rpartition(".")[0] for name, p in model.named_parameters()
        }

    @contextmanager
    def measuring(self) -> Iterator[MeasuredUpdates]:
        """Measure the optimizers that step inside the block; nothing is read."""
        measured = MeasuredUpdates()
        with ExitStack() as hooks:
            for optimizer in filter(_steps_half_weights, self._optimizers):
                if optimizer not in self._rates:
                    self._rates[optimizer] = PlannedRates(optimizer, self._schedulers)
                hook = optimizer.register_step_post_hook(lambda own, *_: measured.measure(own))
                hooks.callback(hook.remove)
            yield measured

    def read(
        self, measured: MeasuredUpdates, step: int, ahead: int
    ) -> tuple[tuple[LayerUpdates, ...], frozenset[str]]:
        """Return the layers with their shares, and which of them the schedule freezes too early."""
        layers: list[LayerUpdates] = []
        early: set[str] = set()
        for optimizer, parameters, lost in measured.parts:
            margins = dict(zip(map(id, parameters), lost.margins(), strict=True))
            total = sum(p.numel() for p in parameters)
            for index, group in enumerate(optimizer.param_groups):
                rates = self._rates[optimizer].ahead(index, step, ahead)
                for module, own in self._by_module(group["params"], margins).items():
                    merged = _merged([margins[id(p)] for p in own])
                    frozen = freezing_step(merged, rates)
                    at = None if frozen is None else step + frozen
                    layers.append(
                        LayerUpdates(module=module, lost=round(merged.share_lost, 4), frozen_at=at)
                    )
                    large = sum(p.numel() for p in own) >= LARGE * total
                    peak = self._rates[optimizer].peak(index)
                    if frozen is not None and large and _is_early(rates, frozen, peak, step):
                        early.add(module)
        return tuple(layers), frozenset(early)

    def _by_module(
        self, parameters: Sequence[Tensor], margins: dict[int, UpdateMargins]
    ) -> dict[str, list[Tensor]]:
        found: dict[str, list[Tensor]] = {}
        for parameter in parameters:
            if id(parameter) in margins:
                found.setdefault(self._module_of.get(id(parameter), ""), []).append(parameter)
        return found


class PlannedRates:
    """The learning rates of the steps to come, kept until the plan is used up or not followed."""

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[Any]) -> None:
        own = [one for one in schedulers if getattr(one, "optimizer", None) is optimizer]
        self._optimizer = optimizer
        # Of several, only the present rate is known.
        self._scheduler = own[0] if len(own) == 1 else None
        self._plans: dict[int, tuple[int, list[float]]] = {}
        self._peaks: dict[int, float] = {}

    def ahead(self, group: int, step: int, count: int) -> list[float]:
        """Return the rate of this step, which has been applied, and of the ``count`` steps after it."""
        now = float(self._optimizer.param_groups[group]["lr"])
        self._peaks[group] = max(self._peaks.get(group, 0.0), now)
        if self._scheduler is None:
            return [now]
        first, plan = self._plans.get(group, (step, []))
        rates = plan[step - first :]
        if len(rates) <= count // 2 or rates[0] != now:
            try:
                rates = future_rates(self._scheduler, 2 * count, group)
            except Exception:  # noqa: BLE001 - a scheduler of the user's own, or one that needs a metric
                return [now]
            self._plans[group] = step, rates
        return rates[: count + 1]

    def peak(self, group: int) -> float:
        """Return the highest rate that was seen or is planned."""
        return max([self._peaks.get(group, 0.0), *self._plans.get(group, (0, []))[1]])


def _steps_half_weights(optimizer: Optimizer) -> bool:
    if isinstance(optimizer, MasterWeights) or not hasattr(optimizer, "register_step_post_hook"):
        return False
    return any(parameter.dtype in HALF_DTYPES for parameter in parameters_of(optimizer))


def _merged(margins: Sequence[UpdateMargins]) -> UpdateMargins:
    counts = tuple(map(sum, zip(*(one.counts for one in margins), strict=True)))
    return UpdateMargins(sum(one.lost for one in margins), counts)


def _is_early(rates: Sequence[float], frozen: int, peak: float, step: int) -> bool:
    """Return whether a layer freezes long before the schedule ends.

    Every schedule that falls to 0 freezes 16-bit weights shortly before its end; that is no fault. Beyond
    its end a schedule may go on in any way, as torch's cosine does, which rises again.
    """
    end = next((i for i, rate in enumerate(rates) if rate <= ENDED * peak), None)
    if end is None:
        return True
    return (end - frozen) > WASTED * (step + end)
