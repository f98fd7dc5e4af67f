"""Updates of 16-bit weights that round to nothing, and the step at which the schedule freezes a layer.

The optimizer is measured right after it has stepped, by a hook that exists during sampled steps only.
Weights in FP32, and masters in FP32 (``MasterWeights``), lose nothing and are not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.numerics.lost_updates import LostUpdates, UpdateMargins, freezing_step
from halfguard.precision.lost_updates import future_rates, measure_lost_updates
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.watch import LayerUpdates
from halfguard.step.parameters import parameters_of, without_wrappers

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
        self._optimizers = [one for one in optimizers if _steps_half_weights(one)]
        self._rates = {id(one): PlannedRates(one, schedulers) for one in self._optimizers}
        self._module_of = {
            id(p): without_wrappers(name).rpartition(".")[0] for name, p in model.named_parameters()
        }

    @contextmanager
    def measuring(self) -> Iterator[MeasuredUpdates]:
        """Measure the optimizers that step inside the block; nothing is read."""
        measured = MeasuredUpdates()
        with ExitStack() as hooks:
            for optimizer in self._optimizers:
                hook = _after_step(measured)
                hooks.callback(optimizer.register_step_post_hook(hook).remove)
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
                rates = self._rates[id(optimizer)].ahead(index, step, ahead)
                for module, own in self._by_module(group["params"], margins).items():
                    merged = _merged([margins[id(p)] for p in own])
                    frozen = freezing_step(merged, rates)
                    at = None if frozen is None else step + frozen
                    layers.append(
                        LayerUpdates(module=module, lost=round(merged.share_lost, 4), frozen_at=at)
                    )
                    large = sum(p.numel() for p in own) >= LARGE * total
                    peak = self._rates[id(optimizer)].peak(index)
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
        self._scheduler = (
            own[0] if len(own) == 1 else None
        )  # several: only the present rate is known
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


def _after_step(measured: MeasuredUpdates) -> Callable[[Optimizer, Any, Any], None]:
    return lambda optimizer, _args, _kwargs: measured.measure(optimizer)


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
