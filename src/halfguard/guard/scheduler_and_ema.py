"""The learning-rate schedulers and the weight average, which advance only with applied steps.

If the host learns late that a step was skipped, the scheduler has already been stepped. That step is not
undone. Instead a later scheduler step is left out, so that the schedule matches the applied steps again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from halfguard.errors import UsageError
from halfguard.guard.learning_rates import LearningRates


class Stateful(Protocol):
    """An object that is saved and loaded like torch's modules and optimizers."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Scheduler(Stateful, Protocol):
    """A learning-rate scheduler."""

    def step(self) -> None: ...


class UpdatesParameters(Protocol):
    """An average of weights, such as torch's ``AveragedModel``."""

    def update_parameters(self, model: nn.Module) -> Any: ...


class UpdatesModel(Protocol):
    """An average of weights, such as timm's ``ModelEmaV3``."""

    def update(self, model: nn.Module) -> Any: ...


WeightAverage = UpdatesParameters | UpdatesModel


class SchedulerAndEma:
    """Advances schedulers and the EMA after an applied step of the optimizer that each belongs to.

    With ``stepped_by_host``, schedulers are only saved and rolled back.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scheduler: Scheduler | Sequence[Scheduler] | None,
        ema: WeightAverage | None,
        *,
        stepped_by_host: bool = False,
    ) -> None:
        self.schedulers = _as_list(scheduler)
        self._stepped_by_host = stepped_by_host
        if not stepped_by_host:
            _raise_if_unfit(self.schedulers)
        everyone = frozenset(map(id, optimizers))
        # A scheduler that names no optimizer advances with each of them.
        self._drives = [_driven(one, optimizers) or everyone for one in self.schedulers]
        driven = frozenset().union(*self._drives)
        self.rates = LearningRates(optimizers, driven, only_in_steps=stepped_by_host)
        self._early = [0] * len(self.schedulers)
        self.ema = ema
        self._update_method = "" if ema is None else _update_method(ema)
        self._model = model
        self._last = id(optimizers[-1])

    @property
    def early_steps(self) -> int | list[int]:
        """Scheduler steps taken for skipped optimizer steps, still to be left out; a list if several."""
        return self._early[0] if len(self._early) == 1 else list(self._early) or 0

    @early_steps.setter
    def early_steps(self, steps: int | Sequence[int]) -> None:
        same = [steps] * len(self.schedulers) if isinstance(steps, int) else list(steps)
        if len(same) != len(self.schedulers):
            raise UsageError(
                f"The state was saved with {len(same)} schedulers, but this guard has "
                f"{len(self.schedulers)}.",
                cure="Pass the same schedulers to the guard, in the same order.",
            )
        self._early = same

    def advance(self, turn: frozenset[int]) -> None:
        """Advance after a step of the optimizers with these ids."""
        due = []
        for index, driven in enumerate(self._drives):
            if driven & turn and not self._stepped_by_host:
                if self._early[index]:
                    self._early[index] -= 1
                else:
                    due.append(index)
        if due and self.rates.factor != 1.0:
            with self.rates.uncut(frozenset().union(*(self._drives[index] for index in due))):
                self._step(due)
        else:
            self._step(due)
        if self.ema is not None and self._last in turn:
            getattr(self.ema, self._update_method)(self._model)

    def undo_early_step(self, turn: frozenset[int]) -> None:
        """Undo one early scheduler step: these optimizers skipped theirs."""
        for index, driven in enumerate(self._drives):
            self._early[index] += bool(driven & turn)

    def savable_parts(self) -> dict[str, Stateful]:
        """Return schedulers and EMA by name; raise a UsageError if a rollback could not restore one."""
        several = len(self.schedulers) > 1
        parts: dict[str, Stateful] = {}
        for index, scheduler in enumerate(self.schedulers):
            _require_state(scheduler, scheduler, "scheduler")
            parts[f"scheduler{index}" if several else "scheduler"] = scheduler
        if self.ema is not None:
            # Averages without a state of their own hold a copy of the model, as timm's do.
            held = (self.ema, *(getattr(self.ema, name, None) for name in ("module", "ema")))
            parts["ema"] = _require_state(next(filter(_has_state, held), None), self.ema, "ema")
        return parts

    def averaged_models(self) -> list[nn.Module]:
        """Return the copies of the model that the EMA holds, to be changed as the model is."""
        held = (self.ema, *(getattr(self.ema, name, None) for name in ("module", "ema")))
        return [one for one in held if isinstance(one, nn.Module)][:1]

    def _step(self, due: Sequence[int]) -> None:
        for index in due:
            self.schedulers[index].step()


def _as_list(scheduler: Scheduler | Sequence[Scheduler] | None) -> list[Scheduler]:
    if scheduler is None:
        return []
    return list(scheduler) if isinstance(scheduler, list | tuple) else [scheduler]  # type: ignore[list-item]


def _raise_if_unfit(schedulers: Sequence[Scheduler]) -> None:
    seen: set[int] = set()
    for scheduler in _nested(schedulers):
        name = type(scheduler).__name__
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                "ReduceLROnPlateau needs a metric, which the guard does not have.",
                cure="Do not pass it as scheduler; call scheduler.step(metric) after each validation.",
            )
        if not callable(getattr(scheduler, "step", None)) or not _accepts(scheduler.step):
            raise UsageError(
                f"The guard cannot step a {name}: it has no step() without arguments.",
                cure="Step the scheduler yourself, or pass an object whose step() calls it.",
            )
        if id(scheduler) in seen:
            raise UsageError(
                f"A {name} was passed twice, alone or inside another scheduler, so it would step twice.",
                cure=(
                    "Pass every scheduler once. SequentialLR and ChainedScheduler step the "
                    "schedulers inside them."
                ),
            )
        seen.add(id(scheduler))


def _nested(schedulers: Sequence[Any]) -> Iterator[Any]:
    for scheduler in schedulers:
        yield scheduler
        inner = getattr(scheduler, "_schedulers", ())  # SequentialLR, ChainedScheduler
        yield from _nested(inner if isinstance(inner, list | tuple) else ())


def _driven(scheduler: Scheduler, optimizers: Sequence[Optimizer]) -> frozenset[int]:
    """Return the id of the optimizer that a scheduler belongs to; nothing if it names none."""
    owner = getattr(scheduler, "optimizer", None)
    if owner is None:
        return frozenset()
    for optimizer in optimizers:
        # An optimizer that wraps another, such as MasterWeights, shares its groups.
        if owner is optimizer or getattr(owner, "param_groups", None) is optimizer.param_groups:
            return frozenset({id(optimizer)})
    raise UsageError(
        f"The {type(scheduler).__name__} belongs to an optimizer that this guard does not have, so "
        "it would never be stepped.",
        cure="Create the scheduler for an optimizer that you pass to the guard.",
    )


def _update_method(ema: Any) -> str:
    for name in ("update_parameters", "update"):
        method = getattr(ema, name, None)
        if callable(method) and _accepts(method, ema):
            return name
    raise UsageError(
        f"The guard cannot update a {type(ema).__name__}: it has neither update_parameters(model) nor "
        "update(model).",
        cure="Use torch.optim.swa_utils.AveragedModel, or pass an object with update(model) that calls it.",
    )


def _accepts(method: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a method can be called with these arguments, as far as its signature tells."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a builtin
        return True
    try:
        bound = signature.bind(*arguments)
    except TypeError:
        return False
    # torch_ema and others iterate over parameters, which a module is not.
    return not {"parameters", "params"} & bound.arguments.keys()


def _has_state(part: Any) -> bool:
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def _require_state(part: Any, owner: Any, name: str) -> Any:
    if not _has_state(part):
        raise UsageError(
            f"recovery cannot roll back the {name}, a {type(owner).__name__}, because it does not have both "
            "state_dict() and load_state_dict().",
            cure="Add both methods to its class, or disable recovery.",
        )
    return part
