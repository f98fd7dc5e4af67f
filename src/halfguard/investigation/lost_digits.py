"""One step of a good run on tape: the line that loses more digits than rounding must."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from halfguard.dist.collectives import world_size
from halfguard.formats import dtype_name
from halfguard.investigation.bus import BackwardCall, HookBus
from halfguard.investigation.detectors import Detector
from halfguard.investigation.passes import Made, Misused
from halfguard.records.rounding import LineInFloat
from halfguard.tracing.called_modules import CalledModules
from halfguard.tracing.rounding import TapedStep, attribute
from halfguard.tracing.rounding_tape import Held, RoundingTape

MAX_BYTES = 2**30  # of what a step makes; float64 copies take about four times that
_TRIES = 3  # steps; one may be too large, as after an evaluation, or overflow


class LostDigits(Detector):
    """Tapes one step, from the end of the step before it to its backward pass, and judges its lines."""

    code = "HG619"

    def __init__(self, bus: HookBus, modules: CalledModules, outermost: CodeType) -> None:
        super().__init__(bus)
        self._modules, self._outermost = modules, outermost
        self._tape: RoundingTape | None = None
        self._loss: Held | None = None
        self._is_wanted = False
        self._left = _TRIES if world_size() == 1 else 0
        self._found: tuple[LineInFloat, ...] = ()
        self._backward, self._dtype = 0, ""

    def look_for(self) -> None:
        """Tape the next step; it begins when the optimizer has stepped, or when a model is called."""
        self._is_wanted = self._left > 0

    def on_stepped(self, _optimizer: Any) -> None:
        """Begin; again, if there are several optimizers."""
        if self._is_wanted:
            self.end()
            self._begin()

    def on_entering(self) -> None:
        if self._is_wanted and self._tape is None and torch.is_grad_enabled():
            self._begin()

    def _begin(self) -> None:
        self._tape = RoundingTape(self._modules, self._outermost, MAX_BYTES)
        self._tape.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> RoundingTape | None:
        """Stop, and return what was kept."""
        tape, self._tape = self._tape, None
        if tape is not None:
            tape.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return tape

    def on_backward(self, call: BackwardCall) -> None:
        tape = self._tape
        if tape is not None and call.accumulates:
            is_one = len(call.losses) == 1 and call.losses[0].numel() == 1
            tape.forward_entries = len(tape.entries)
            with self.bus.unobserved():
                self._loss = tape.hold(call.losses[0].detach()) if is_one else None

    def on_backward_done(self, call: BackwardCall, gradients: list[Tensor]) -> None:
        """Judge the step; if it cannot be judged, another one is taped."""
        if self._tape is None or not call.accumulates:
            return
        tape, loss = self.end(), self._loss
        self._left -= 1
        self._loss, self._is_wanted = None, self._left > 0
        if tape is None or loss is None or tape.is_full or (call.scaled and call.scaler is None):
            return
        with self.bus.unobserved():
            held = [tape.hold(grad) for grad in gradients if not grad.is_sparse]
            scale = self.bus.scale_of(call.scaler)
            step = TapedStep(tape, self._modules.named, loss, held, scale, self._weights())
            if step.dtype is None or tape.is_full or not step.is_finite:
                return
            self._found = attribute(step, step.dtype).findings
            self._dtype = dtype_name(step.dtype)
        self._is_wanted, self._backward = False, self.bus.backward

    def _weights(self) -> set[int]:
        """Return the storages of all weights; frozen ones, too."""
        own = [] if self._modules.model is None else list(self._modules.model.parameters())
        return {p.untyped_storage()._cdata for p in (*own, *self.bus.parameters)}

    def found(self, _made: Made, _error: str) -> Iterator[Misused]:
        """Yield the line that costs most; only FP32 can tell whether the script learns less for it."""
        for one in (line for line in self._found[:1] if line.share >= _LEAST_SHARE):
            file, _, line = one.place.rpartition(":")
            yield Misused(
                kind="lost digits",
                code=self.code,
                sentence=_sentence(*self._found),
                place=(file, int(line)),
                backward=self._backward,
                dtype=self._dtype,
                unsure=True,
            )


_LEAST_SHARE = 0.1  # of the error, as a variance: less is no cause, as next to an overflow


def _sentence(found: LineInFloat, *others: LineInFloat) -> str:
    what = "the loss" if found.by == "loss" else "the gradients"
    where = f"module {found.calls_module} in {found.place}" if found.calls_module else found.place
    return (
        f"16-bit rounding at {where} ({found.code}) causes {found.share:.0%} of the error of "
        f"{what}, {found.cost / found.must:.1f} times the unavoidable rounding error. "
        f"With this line in FP32, the error falls from {found.before:.2g} to "
        f"{found.after:.2g}."
        + (f" Accuracy is also lost at {', '.join(one.place for one in others)}." if others else "")
    )
