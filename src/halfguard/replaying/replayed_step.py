"""A bad step run again: same weights, batches, random numbers and loss scale, with at most one thing changed.

The state comes from the incident, the code from the workload. Each run starts from a fresh copy of the model,
so that runs are independent. An incident from a GPU is repeated on a CPU under CUDA's autocast rules, which
differ from the CPU's.

A step that was not finite is good if it is finite. After a spike that is not enough: loss and norm must be
in the range of healthy steps. The incident does not hold the limit that applied, but the rows before it
show what passed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.errors import HalfguardError, RecordError, UsageError
from halfguard.guard.step_batches import trainable_loss
from halfguard.incident import Incident
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.islands import make_islands
from halfguard.precision.modes import HALF_DTYPES, autocast
from halfguard.precision_names import Precision
from halfguard.records import Cause, HealthyStepsRow, IncidentRecord, parse_journal_row
from halfguard.records.plan import AnyIsland, Island, LineIsland, PrecisionPlan
from halfguard.replaying.restore import load_batches, load_model, restore_generators
from halfguard.replaying.samples import map_tensors, select
from halfguard.step.parameters import without_wrappers
from halfguard.trials.line_islands import LineIslands
from halfguard.trials.proof import squared_difference
from halfguard.workload import Workload
from halfguard.workload.user_error import describe_error


@dataclass(frozen=True)
class GoodStepLimits:
    """The largest loss and gradient norm of a good step."""

    loss: float = inf
    grad_norm: float = inf


def good_step_limits(record: IncidentRecord) -> GoodStepLimits:
    """Return the limits, from the cause, the configuration, and the healthy steps before this one."""
    windows = _windows(record)
    if record.step.cause is Cause.LOSS_SPIKE:
        return GoodStepLimits(loss=max((w.loss_max for w in windows), default=record.step.loss / 2))
    if record.step.cause is not Cause.GRADIENT_SPIKE:
        return GoodStepLimits()
    skip = record.config.get("skip")
    fixed = skip.get("max_grad_norm") if isinstance(skip, dict) else None
    if isinstance(fixed, float | int) and record.step.grad_norm > fixed:
        return GoodStepLimits(grad_norm=float(fixed))
    return GoodStepLimits(
        grad_norm=max((w.grad_norm_max for w in windows), default=record.step.grad_norm / 2)
    )


def _windows(record: IncidentRecord) -> list[HealthyStepsRow]:
    rows = []
    for text in record.recent:
        try:
            row = parse_journal_row(text)
        except RecordError:
            continue  # a row of a later version, or a damaged one
        if isinstance(row, HealthyStepsRow):
            rows.append(row)
    return rows


@dataclass(frozen=True)
class Variation:
    """The changes in a run of the step; by default none."""

    precision: Precision | None = None
    scale: float | None = None
    islands: tuple[AnyIsland, ...] = ()
    zeroed: tuple[str, ...] = ()  # tensors of the model whose non-finite numbers are set to 0
    micro_batches: tuple[int, ...] | None = None  # which of them take part
    samples: tuple[int, ...] | None = None  # which samples of each take part
    rounded: torch.dtype | None = None  # to which the weights are rounded
    context: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the block with the context and the lines of the variation."""
        lines = LineIslands(one for one in self.islands if isinstance(one, LineIsland))
        with self.context, lines.active():
            yield


UNCHANGED = Variation()


@dataclass(frozen=True)
class Result:
    """The result of a run; gradients are unscaled, those of half parameters in float32."""

    loss: Tensor
    grads: dict[str, Tensor]
    norms: dict[str, float]
    grad_norm: float

    @property
    def finite(self) -> bool:
        """True if the loss and every gradient are finite."""
        return bool(self.loss.isfinite()) and all(
            bool(grad.isfinite().all()) for grad in self.grads.values()
        )

    def is_good(self, limits: GoodStepLimits) -> bool:
        """Return whether the step would have been applied."""
        loss_fits = self.loss.item() <= limits.loss
        return self.finite and loss_fits and self.grad_norm <= limits.grad_norm


class ReplayedStep:
    """The step of an incident, ready to be run any number of times."""

    def __init__(self, incident: Incident, workload: Workload) -> None:
        self.incident, self.record = incident, incident.record
        self.workload = workload
        self.model = load_model(workload, incident)
        self.device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        self.batches, self.rng = load_batches(incident, self.device)
        self.precision = Precision(self.record.precision)
        self.limits = good_step_limits(self.record)
        self.scale = self.record.scale
        clip = self.record.config.get("clip") or {}
        self._norm_type = float(clip.get("norm_type", 2.0)) if isinstance(clip, dict) else 2.0
        parts = self.record.config.get("accumulate", len(self.batches))
        self._parts = parts if isinstance(parts, int) and parts > 0 else len(self.batches)

    @property
    def scale_floor(self) -> float:
        """The loss scale to which the run could fall; below 1, small gradients would underflow."""
        scale = self.record.config.get("scale")
        floor = scale.get("floor") if isinstance(scale, dict) else None
        is_dynamic = (
            self.precision.needs_loss_scale and isinstance(floor, float | int) and floor > 0
        )
        return min(self.scale, max(floor, 1.0)) if is_dynamic and floor is not None else self.scale

    @property
    def emulated(self) -> bool:
        """True if CUDA's autocast rules, those of accelerators, are emulated on this machine."""
        return self.record.device != "cpu" and self.device.type == "cpu"

    def original(self) -> Result:
        """Run the step unchanged; an exception of the user's code becomes a UsageError with its line."""
        try:
            return self.run()
        except HalfguardError:
            raise
        except Exception as error:
            raise UsageError(
                f"The step cannot be run: {describe_error(error)}",
                cure="The ENTRY's loss function must accept the batches of the incident. Tensors, "
                "dicts, lists and tuples are unchanged. Any other object is replaced by a "
                "namespace with the same fields.",
            ) from error

    def run(self, variation: Variation = UNCHANGED) -> Result:
        """Run the step on a fresh copy of the model."""
        model = self.copy(variation)
        scale = self.scale if variation.scale is None else variation.scale
        grads: dict[str, Tensor] = {}
        total: Tensor | None = None
        with variation.active():
            for index in variation.micro_batches or range(len(self.batches)):
                part = self.part(model, index, self.batch(index, variation), variation)
                scale_loss(part, scale).backward()  # type: ignore[no-untyped-call]
                collect_gradients(model, grads)
                total = part.detach() if total is None else total + part.detach()
        if total is None:
            raise UsageError(f"{self.incident.folder} contains no batch.")
        unscale_gradients(list(grads.values()), scale)
        norms = {name: self._norm([grad]) for name, grad in grads.items()}
        return Result(total.float(), grads, norms, self._norm(list(grads.values())))

    def copy(self, variation: Variation = UNCHANGED) -> nn.Module:
        """Return a copy of the model with the changes of the variation."""
        model = copy.deepcopy(self.model)
        if variation.precision is not None and not variation.precision.needs_master_weights:
            model = model.float()
        modules = tuple(one for one in variation.islands if isinstance(one, Island))
        make_islands(model, PrecisionPlan(islands=modules))
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name in variation.zeroed:
            state[name].data.nan_to_num_(0.0, 0.0, 0.0)
        if variation.rounded is not None:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(variation.rounded).to(parameter.dtype)
        return model

    def batch(self, index: int, variation: Variation = UNCHANGED) -> Any:
        """Return a copy of a micro-batch, since the user's code may write to it."""
        batch = map_tensors(self.batches[index], torch.clone)
        return batch if variation.samples is None else select(batch, variation.samples)

    def part(
        self, model: nn.Module, index: int, batch: Any, variation: Variation = UNCHANGED
    ) -> Tensor:
        """Return one micro-batch's part of the loss, in the precision of the variation."""
        restore_generators(self.rng[index])
        with self._autocast(variation.precision or self.precision):
            loss = trainable_loss(self.workload.loss(model, batch))
        return loss if self._parts == 1 else loss / self._parts

    def _autocast(self, precision: Precision) -> AbstractContextManager[Any]:
        if self.emulated:
            return autocast_like_cuda(precision, self.device)
        return autocast(precision, self.device.type)

    def _norm(self, grads: list[Tensor]) -> float:
        # With the operations of the guard, so that the bits are equal.
        if not grads:
            return 0.0
        norms = torch._foreach_norm(grads, self._norm_type)
        if len(grads) == 1:
            return float(norms[0])
        return float(torch.linalg.vector_norm(torch.stack(list(norms)), self._norm_type))

    def matches_incident(self, result: Result) -> bool:
        """Return whether loss and gradient norms equal those of the incident, bit for bit.

        Where all of them are NaN there is nothing to compare: every NaN equals every other.
        """
        recorded = {without_wrappers(name): norm for name, norm in self.record.grad_norms.items()}
        norms = {without_wrappers(name): norm for name, norm in result.norms.items()}
        return (
            any(math.isfinite(value) for value in (self.record.step.loss, *recorded.values()))
            and recorded.keys() <= norms.keys()
            and _same(result.loss.item(), self.record.step.loss)
            and all(_same(norms[name], norm) for name, norm in recorded.items())
        )


def relative_error(result: Result, reference: Result) -> float:
    """Return the relative error of all gradients together, as a norm."""
    names = [name for name in reference.grads if name in result.grads]
    apart, size = squared_difference(
        [result.grads[name] for name in names], [reference.grads[name] for name in names]
    )
    return math.sqrt(apart / size) if size else math.inf


def _same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


# Gradients as the scaler computes them, with its own operations, so that the bits are equal.


def scale_loss(loss: Tensor, scale: float) -> Tensor:
    """Return the loss times the scale, as the scaler computes it: in float32, also for a half loss."""
    return loss * torch.full((), scale, dtype=torch.float32, device=loss.device)


def collect_gradients(model: nn.Module, grads: dict[str, Tensor]) -> None:
    """Move gradients of half parameters into float32 sums, as master weights do; keep the others."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if parameter.dtype not in HALF_DTYPES:
            grads[name] = parameter.grad
            continue
        grad, parameter.grad = parameter.grad.float(), None
        grads[name] = grads[name].add_(grad) if name in grads else grad


def unscale_gradients(grads: list[Tensor], scale: float) -> None:
    """Divide by the scale with the operations of the scaler, so that the bits are equal."""
    inverse = torch.full((), scale, dtype=torch.float32).double().reciprocal().float()
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        values = grad._values() if grad.is_sparse else grad
        by_kind.setdefault((grad.device, grad.dtype), []).append(values)
    for (device, _), group in by_kind.items():
        found = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, inverse.to(device))
