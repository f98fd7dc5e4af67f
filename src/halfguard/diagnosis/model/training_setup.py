"""The training setup that checks look at: a model, its optimizers, its loss scaler and its settings.

A plain loop, a Lightning Trainer and an Accelerator keep them in different places. The files in
``frameworks`` find them and make one ``TrainingSetup``, so no check depends on a framework.

Half weights whose small updates are kept: by FP32 copies, or by an optimizer that adds them up.

An optimizer that is not torch's may hold FP32 copies in its state, add up what rounding has cut off (Kahan),
or round at random. Neither its name nor its first state shows it. So one more of its class is made, for a
small half weight, with the same settings and a rate at which every single update is rounded away. How far one
step goes at a rate differs (momentum of 0.9 multiplies it by 10), so the same steps on an FP32 weight are
measured first.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from halfguard.diagnosis.model.forward import ObservedForward
from halfguard.diagnosis.model.measured_precision import MeasuredPrecision, parse_precision
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.diagnosis import EffectivePrecision
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


@dataclass(frozen=True)
class OptimizerParameter:
    """A parameter in an optimizer, with the name that it has in the model."""

    name: str
    tensor: Tensor
    group: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Optimizer | None = None
    in_model: bool = True  # a parameter of the model, or the master of one
    master_of: Tensor | None = None
    keeps_updates: bool = False  # the optimizer was seen to keep updates of half weights

    @property
    def trained_as_half(self) -> bool:
        return self.tensor.requires_grad and self.tensor.dtype in HALF_DTYPES

    @property
    def updated_in_half(self) -> bool:
        return self.trained_as_half and not self.keeps_updates

    @property
    def weight(self) -> Tensor:
        """The tensor that the forward pass uses: for a master weight, the half weight."""
        return self.tensor if self.master_of is None else self.master_of


@dataclass(frozen=True)
class MeasuredGradients:
    """The gradients of a batch by the id of their parameter, and the share that is lost without a scale."""

    of: dict[int, Tensor]  # in FP32, measured at a scale at which they are not lost
    lost: float  # of the elements that are not 0


@dataclass(frozen=True)
class Advice:
    """Lines for the user to paste, written for one framework."""

    why: str = ""  # why the precision differs from the requested one
    precision: str = ""  # a line that sets the requested precision, or the nearest
    scaler: str = ""  # a line that adds a loss scaler
    setup_calls: str = ""  # lines to run first; without them the forward pass may raise


@dataclass(frozen=True)
class TrainingSetup:
    """A model and everything that trains it, and one forward pass as it runs in training."""

    framework: str = "plain"
    model: nn.Module | None = None
    optimizers: tuple[Optimizer, ...] = ()
    scaler: torch.amp.GradScaler | None = None
    asked: str | None = None  # the requested precision
    run_forward: Callable[[], Any] | None = None  # one forward pass as it runs in training
    # Inside this context the model has the dtypes and the device that it has in training.
    as_trained: Callable[[], AbstractContextManager[Any]] = nullcontext
    advise: Callable[[str | None, MeasuredPrecision], Advice] = lambda _asked, _measured: Advice()
    training_arguments: Any = None  # of transformers
    checkpoint: Any = None
    rollout: Any = None  # the copy that generates: a module, or an engine of vLLM
    detects_anomalies: bool = False
    not_run: str = ""  # why there is no forward pass, although there is a batch
    # Set after the forward pass.
    forward: ObservedForward | None = None
    measured: MeasuredPrecision | None = None  # None if it raised
    effective: EffectivePrecision | None = None
    gradients: MeasuredGradients | None = None  # None if they were not measured

    @property
    def device_type(self) -> str:
        parameters = () if self.model is None else self.model.parameters()
        return next((p.device.type for p in parameters), "cpu")

    @cached_property
    def parameters(self) -> tuple[OptimizerParameter, ...]:
        """The parameters of the optimizers; without an optimizer, the trainable ones of the model."""
        if self.optimizers:
            return tuple(chain.from_iterable(map(self._parameters_of, self.optimizers)))
        parameters = () if self.model is None else self.model.named_parameters()
        return tuple(OptimizerParameter(name, p) for name, p in parameters if p.requires_grad)

    @property
    def trained_dtypes(self) -> Counter[torch.dtype]:
        """Trained elements by dtype: in the model, else outside of it, else all elements."""
        updated = [one for one in self.parameters if one.weight.requires_grad]
        in_model = [one.weight for one in updated if one.in_model]
        outside = [one.weight for one in updated if not one.in_model]
        all_parameters = [] if self.model is None else list(self.model.parameters())
        counts: Counter[torch.dtype] = Counter()
        trainable = [p for p in all_parameters if p.requires_grad]
        for parameter in in_model or trainable or outside or all_parameters:
            counts[parameter.dtype] += parameter.numel()
        return counts

    @property
    def trained_in_half(self) -> list[OptimizerParameter]:
        return [one for one in self.parameters if one.updated_in_half]

    @property
    def has_frozen_half_base(self) -> bool:
        """Return whether the model has frozen 16-bit parameters next to trainable ones."""
        parameters = [] if self.model is None else list(self.model.parameters())
        frozen = any(not p.requires_grad and p.dtype in HALF_DTYPES for p in parameters)
        return frozen and any(p.requires_grad for p in parameters)

    @property
    def precision(self) -> str | None:
        """The measured precision; if there is none, the requested one."""
        return self.asked if self.measured is None else self.measured.name

    @property
    def trains_through_fp16(self) -> bool:
        """Return whether gradients pass through FP16: measured, or else as requested."""
        if self.forward is None or self.measured is None:
            return (self.asked or "").startswith("fp16")
        return any(p.passes_gradient and p.dtype is torch.float16 for p in self.forward.products)

    @property
    def advice(self) -> Advice:
        """Advice for the measured precision, or else for the requested one."""
        return self.advise(self.asked, self.measured or parse_precision(self.asked or "unknown"))

    @property
    def scaler_enabled(self) -> bool:
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def for_training(self) -> bool:
        """Return whether there is an optimizer or a trainer."""
        return bool(self.optimizers) or self.framework != "plain"

    @property
    def half_weights_cure(self) -> str:
        """The line that makes the optimizer update FP32 weights."""
        if self.has_frozen_half_base:
            return "halfguard.upcast_trainable(model)  # before the optimizer is built"
        if self.asked is not None and not self.asked.endswith(("-weights", "-true")):
            return "model.float()  # before the optimizer is built"
        return "optimizer = halfguard.MasterWeights(optimizer)"

    @cached_property
    def _parameter_names(self) -> dict[int, str]:
        if self.model is None:
            return {}
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def _parameters_of(self, optimizer: Optimizer) -> Iterable[OptimizerParameter]:
        if isinstance(optimizer, MasterWeights):
            owners = {id(master): half for half, master in optimizer.masters().items()}
        else:
            owners = find_masters(self.model, optimizer)
        keeps: dict[torch.dtype, bool] = {}
        for position, group in enumerate(optimizer.param_groups):
            # By index: iterating over MasterWeights' parameters moves gradients into the masters.
            params = group["params"]
            for index in range(len(params)):
                owner = owners.get(id(params[index]), params[index])
                dtype = params[index].dtype
                if dtype in HALF_DTYPES and dtype not in keeps:
                    keeps[dtype] = keeps_small_updates(optimizer, dtype)
                name = self._parameter_names.get(id(owner))
                unnamed = f"parameter {index} of group {position}"
                yield OptimizerParameter(
                    name or unnamed,
                    params[index],
                    group,
                    optimizer,
                    in_model=name is not None,
                    master_of=owners.get(id(params[index])),
                    keeps_updates=keeps.get(dtype, False),
                )


def count_are(number: int, noun: str) -> str:
    """Return ``"1 parameter is"`` or ``"3 parameters are"``."""
    return f"1 {noun} is" if number == 1 else f"{number} {noun}s are"


def join_names(names: Iterable[str], most: int = 3) -> str:
    """Return the first names and the number of the others: ``"a, b, c and 5 more"``."""
    all_names = list(names)
    more = len(all_names) - most
    return ", ".join(all_names[:most]) + (f" and {more} more" if more > 0 else "")
