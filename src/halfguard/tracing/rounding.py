"""Which lines lose the digits of a 16-bit step, and whether one of them loses more than it must.

What must rounding cost? Each result of an operation in half is off by up to u, the unit roundoff, in relative
terms. A well-conditioned step whose longest way has d roundings is off by at most about d * u. A step that
is ill-conditioned by itself is off by more, whatever the code: then rounding weights and inputs, and
nothing else, has a large effect as well; d roundings, independent of each other, have sqrt(d) times that
effect. A line is reported if its roundings alone cost more than the sum of both. No other number decides. A
loop inside the line counts once in d. Weights must be rounded, so a cast of weights is never reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from halfguard.errors import UsageError
from halfguard.formats import dtype_name
from halfguard.records.rounding import (
    Effect,
    LineInFloat,
    RoundedLine,
    RoundedModule,
    Rounding,
    RoundingReport,
)
from halfguard.step.loss import scalar_loss
from halfguard.tracing.audit import restored
from halfguard.tracing.operation_places import ModuleStack
from halfguard.tracing.rounding_sweep import sweep
from halfguard.tracing.rounding_tape import HALF, Entry, Held, RoundingTape

CANDIDATES = 3
_MAX_SCALE = 65536.0  # where torch's scaler starts
_LESS_SCALE = 16.0

Place = tuple[str, int, str]  # file, line, module of torch that the line calls
Run = Callable[[], object]  # the forward pass, in its autocast context


@dataclass
class TapedStep:
    """One step on tape, with its loss and gradients."""

    tape: RoundingTape
    modules: Mapping[str, nn.Module]  # by path
    loss: Held
    grads: list[Held]
    scale: float
    weights: set[int]  # storages

    @property
    def is_finite(self) -> bool:
        return all(bool(one.tensor.isfinite().all()) for one in (self.loss, *self.grads))

    def errors(self) -> tuple[float, list[Tensor]]:
        """Return by how much loss and gradients are off, against the numbers repeated last."""
        apart = [(one.wide - self.tape.exact(one)) / self.scale for one in self.grads]
        return float(self.loss.wide - self.tape.exact(self.loss)), apart

    def place(self, entry: Entry) -> Place:
        """Return the line of an entry, and the module of torch that runs it for the line."""
        path, source = entry.place.module, entry.place.source
        module = None if not path else self.modules.get(path)
        if module is None or not type(module).__module__.startswith("torch."):
            return source.file, source.line, ""
        return source.file, source.line, _pattern(path or "")

    def rounding(self, entry: Entry) -> Rounding:
        """Return what an entry rounds."""
        if not entry.is_cast:
            return "operation"
        of_weights = any(one.key in self.weights for one in entry.inputs)
        return "cast of weights" if of_weights else "cast"

    @property
    def dtype(self) -> torch.dtype | None:
        """The narrowest half of the step; None if nothing was rounded to half."""
        made = {one.tensor.dtype for entry in self.tape.entries for one in entry.results}
        return next((dtype for dtype in reversed(HALF) if dtype in made), None)


def _pattern(path: str) -> str:
    """Return a path with stars for the indices of blocks; the last part names the module itself."""
    *above, last = path.split(".")
    return ".".join([*("*" if part.isdecimal() else part for part in above), last])


def tape_step(run: Run, model: nn.Module, *, scale: float) -> TapedStep:
    """Run a step on tape: ``run`` and the backward pass of its loss. The model is as before afterwards."""
    modules = ModuleStack()
    tape = RoundingTape(modules, _run.__code__)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    with restored(model), modules.tracking(model), torch.enable_grad(), _without_fused_rnn(model):
        with tape:
            loss = _run(run, tape, scale)
        grads = [p.grad for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
        held = [tape.hold(grad) for grad in grads]
        by_path = dict(model.named_modules())
        return TapedStep(tape, by_path, tape.hold(loss.detach()), held, scale, weights)


@contextmanager
def _without_fused_rnn(model: nn.Module) -> Iterator[None]:
    """Let recurrent layers on a CPU run as single operations: the fused one has no float64."""
    enabled: Any = torch.backends.mkldnn.enabled
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = enabled


def _run(run: Run, tape: RoundingTape, scale: float) -> Tensor:
    loss = scalar_loss(run())
    tape.forward_entries = len(tape.entries)
    if not loss.requires_grad:
        raise UsageError(
            "rounding: the loss has no gradient.", cure="Return a loss that depends on the weights."
        )
    (loss.float() * scale).backward()  # type: ignore[no-untyped-call]
    return loss


def tape_finite_step(run: Run, model: nn.Module, *, is_fp16: bool) -> TapedStep:
    """Run a step on tape, in FP16 with the largest usual loss scale at which its gradients are finite."""
    scale = _MAX_SCALE if is_fp16 else 1.0
    while True:
        step = tape_step(run, model, scale=scale)
        if step.is_finite:
            return step
        if scale <= 1 or not bool(step.loss.tensor.isfinite().all()):
            raise UsageError(
                "rounding: the loss or the gradients are not finite, so lost digits are not the "
                "problem.",
                cure="halfguard.find_first_nonfinite names the operation that returned the first NaN or Inf.",
            )
        scale /= _LESS_SCALE


@dataclass
class _Sum:
    loss: float = 0.0
    loss_square: float = 0.0
    gradient: float = 0.0
    gradient_square: float = 0.0
    backward: float = 0.0
    entries: list[Entry] = field(default_factory=list)

    def add(
        self, entry: Entry, on_loss: tuple[float, float], on_gradients: tuple[float, float]
    ) -> None:
        self.loss += on_loss[0]
        self.loss_square += on_loss[1]
        self.gradient += on_gradients[0]
        self.gradient_square += on_gradients[1]
        self.backward += on_gradients[0] if entry.place.phase == "backward" else 0.0
        self.entries.append(entry)

    def fields(self) -> dict[str, float]:
        return {
            "loss": self.loss,
            "loss_rms": math.sqrt(self.loss_square),
            "gradient": self.gradient,
            "gradient_rms": math.sqrt(self.gradient_square),
            "backward": self.backward,
        }


def attribute(step: TapedStep, dtype: torch.dtype, *, same_branches: bool = True) -> RoundingReport:
    """Return the report of a taped step: effects by line and module, and lines that cost too much."""
    step.tape.repeat(same_branches=same_branches)
    loss_error, apart = step.errors()
    error = norm(apart)
    size = norm(step.tape.exact(one) / step.scale for one in step.grads)
    lines, modules = _effects(step, apart, error)
    judgement = _Judgement(step, torch.finfo(dtype).eps / 2, loss_error, apart, size)
    rows = sorted((_line(key, one) for key, one in lines.items()), key=judgement.size, reverse=True)
    return RoundingReport(
        precision=dtype_name(dtype),
        loss=float(step.loss.wide),
        loss_error=loss_error,
        loss_predicted=sum(row.loss for row in rows),
        gradient_norm=size,
        gradient_error=error,
        gradient_predicted=sum(row.gradient for row in rows),
        depth=judgement.depth(lambda _: False),
        scale=step.scale,
        lines=tuple(rows),
        modules=tuple(
            RoundedModule(module=path, **one.fields())
            for path, one in sorted(modules.items(), key=lambda item: -item[1].gradient)
        ),
        findings=judgement.findings(rows),
        not_judged=tuple(step.tape.not_judged),
    )


def norm(parts: Iterable[Tensor]) -> float:
    """Return the norm of several tensors together."""
    return math.sqrt(sum(float(part.abs().square().sum()) for part in parts))


Key = tuple[Place, Rounding]


def _effects(
    step: TapedStep, apart: list[Tensor], error: float
) -> tuple[dict[Key, _Sum], dict[str, _Sum]]:
    lines: dict[Key, _Sum] = {}
    modules: dict[str, _Sum] = {}
    ones = [(step.loss, torch.ones_like(step.loss.wide))]
    along = [
        (one, part / error / step.scale)
        for one, part in zip(step.grads, apart, strict=True)
        if error
    ]
    for entry, (on_loss, on_gradients) in sweep(step.tape, ones, along):
        for one in _sums(step, entry, lines, modules):
            one.add(entry, on_loss, on_gradients)
    return lines, modules


def _sums(
    step: TapedStep, entry: Entry, lines: dict[Key, _Sum], modules: dict[str, _Sum]
) -> tuple[_Sum, _Sum]:
    key = step.place(entry), step.rounding(entry)
    of_line = lines.setdefault(key, _Sum())
    return of_line, modules.setdefault(entry.place.module or "", _Sum())


def _line(key: Key, one: _Sum) -> RoundedLine:
    (file, line, calls_module), rounding = key
    return RoundedLine(
        file=file,
        line=line,
        code=one.entries[0].place.source.code if one.entries else "",
        rounding=rounding,
        ops=tuple(dict.fromkeys(entry.place.op for entry in one.entries)),
        modules=tuple(dict.fromkeys(e.place.module for e in one.entries if e.place.module)),
        calls_module=calls_module,
        calls=len(one.entries),
        **one.fields(),
    )


@dataclass
class _Judgement:
    """What rounding must cost in this step, and the lines that cost more."""

    step: TapedStep
    unit: float  # roundoff
    loss_error: float
    apart: list[Tensor]  # errors of the gradients
    norm: float  # of the exact gradients

    def depth(self, ignores: Callable[[Entry], bool]) -> int:
        return self.step.tape.depth((self.step.loss, *self.step.grads), ignores)

    @property
    def loss(self) -> float:
        return abs(float(self.step.loss.wide))

    def size(self, row: Effect) -> float:
        """Return the larger of the effects of a row, relative to loss and gradients."""
        of_loss = abs(row.loss) / self.loss if self.loss else 0.0
        return max(of_loss, row.gradient / self.norm if self.norm else 0.0)

    def findings(self, rows: list[RoundedLine]) -> tuple[LineInFloat, ...]:
        """Return the lines whose roundings alone cost more than rounding must."""
        places: dict[Place, list[RoundedLine]] = {}
        for row in rows:
            if row.rounding != "cast of weights" and row.file:
                places.setdefault((row.file, row.line, row.calls_module), []).append(row)
        # Rounding must cost one unit at least.
        large = [place for place, own in places.items() if sum(map(self.size, own)) > self.unit]
        of_weights = sum(row.loss_rms**2 for row in rows if row.rounding == "cast of weights")
        found = (
            self._judge(place, places[place][0], math.sqrt(of_weights))
            for place in large[:CANDIDATES]
        )
        return tuple(one for one in found if one is not None)

    def _cost(self, keeps: Callable[[Entry], bool]) -> tuple[float, float]:
        """Return the errors of loss and gradients with the roundings of some entries only."""
        self.step.tape.repeat_with(keeps)
        loss, apart = self.step.errors()  # what all other entries do
        both = zip(self.apart, apart, strict=True)
        return abs(self.loss_error - loss), norm(a - b for a, b in both)

    def _judge(self, place: Place, row: RoundedLine, of_weights: float) -> LineInFloat | None:
        def is_own(entry: Entry) -> bool:
            weights = self.step.rounding(entry) == "cast of weights"
            return not weights and self.step.place(entry) == place

        own = [one for one in self.step.tape.entries if is_own(one) and one.rounds]
        depth = self.depth(is_own) + len({(one.packet, one.place.phase) for one in own})
        cost = self._cost(is_own)
        data = self._cost(lambda entry: entry.is_data and not is_own(entry))
        must = (
            depth * self.unit * self.loss + math.sqrt(depth) * max(data[0], of_weights),
            depth * self.unit * self.norm + math.sqrt(depth) * data[1],
        )
        which = max((0, 1), key=lambda one: cost[one] / must[one] if must[one] else 0.0)
        if cost[which] <= must[which]:
            return None
        after = self._cost(lambda entry: not is_own(entry))
        return LineInFloat(
            place=row.place,
            code=row.code,
            modules=row.modules,
            calls_module=row.calls_module,
            by=("loss", "gradient")[which],
            cost=cost[which],
            must=must[which],
            before=(abs(self.loss_error), norm(self.apart))[which],
            after=after[which],
        )
