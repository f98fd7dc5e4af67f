"""Plain loops in FP32 and in FP16 with torch's GradScaler, to see that the material is what it says."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import halfguard as hg
from benchmarks.models.planted.base import Drift, Job
from halfguard.precision.emulation import EmulationHold

HERE = Path(__file__).parent
CALIBRATION = 20  # steps in which the scale may fall from 65536 to nearly any value


@dataclass(frozen=True)
class Run:
    """The losses of a run, the steps that were not applied, and the FP32 loss before and after."""

    losses: Sequence[float]
    skipped: Sequence[int]
    scale: float
    before: float
    after: float

    @property
    def late_skips(self) -> int:
        return sum(step >= CALIBRATION for step in self.skipped)

    @property
    def learnt(self) -> float:
        """The fall of the FP32 loss; NaN if the weights are broken."""
        return self.before - self.after


def _finite(tensors: list[Tensor]) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors)


def train(job: Job, seed: int, *, half: bool, steps: int = 200, probes: int = 20) -> Run:
    """Train a job with autocast and GradScaler as torch's documentation does, or in FP32."""
    work = job(seed)
    losses: list[float] = []
    skipped: list[int] = []
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    probe = list(work.take(probes))

    def probe_loss() -> float:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            return sum(work.loss_of(batch).item() for batch in probe) / probes

    before = probe_loss()
    hold = EmulationHold()
    for step, batch in enumerate(work.take(steps)):
        work.optimizer.zero_grad(set_to_none=True)
        if half:
            with hg.emulate_autocast("cuda"):
                loss = work.loss_of(batch)
        else:
            loss = work.loss_of(batch)
        scaler.scale(loss).backward()
        losses.append(loss.item())
        grads = [p.grad for p in work.model.parameters() if p.grad is not None]
        if not _finite(grads):
            skipped.append(step)
        if half or step not in skipped[-1:]:
            scaler.step(work.optimizer)
        scaler.update()
    del hold
    return Run(losses, skipped, scaler.get_scale() if half else 1.0, before, probe_loss())


class _FirstNonfinite(TorchDispatchMode):
    """Keeps the line of this package that made the first output that is not finite."""

    line: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.line is None and isinstance(out, Tensor) and not bool(out.isfinite().all()):
            frames = [f for f in traceback.extract_stack() if Path(f.filename).parent == HERE]
            self.line = next((f.line for f in reversed(frames) if f.filename != __file__), "")
        return out


def nonfinite_lines(job: Job, seed: int, steps: int = 30) -> set[str]:
    """Train in FP16 and return the lines where values of a forward pass first cease to be finite."""
    work = job(seed)
    scaler = torch.amp.GradScaler("cpu")
    lines: set[str] = set()
    hold = EmulationHold()
    for batch in work.take(steps):
        work.optimizer.zero_grad(set_to_none=True)
        with hg.emulate_autocast("cuda"), _FirstNonfinite() as first:
            loss = work.loss_of(batch)
        if first.line is not None:
            lines.add(first.line)
        scaler.scale(loss).backward()
        scaler.step(work.optimizer)
        scaler.update()
    del hold
    return lines


def learns(run: Run) -> bool:
    """Say if an FP32 run applied every step and its loss fell by a fifth or more."""
    return not run.skipped and run.learnt > 0.2 * abs(run.before)


def agrees(half: Run, single: Run) -> bool:
    """Say if FP16 skips nothing once its scale is found, and learns what FP32 learns."""
    return half.late_skips == 0 and half.learnt >= 0.9 * single.learnt


def fails(half: Run, single: Run) -> bool:
    """Say if FP16 skips again and again, or learns less than half of what FP32 learns."""
    return half.late_skips >= 10 or not half.learnt >= 0.5 * single.learnt


def first_overflow(drift: Drift, seed: int) -> tuple[int, str] | None:
    """Train in FP16 and return the step and the innermost module of the first output that is not finite."""
    model, loss_fn, batch_fn, optimizer, steps = drift.make(seed)
    scaler = torch.amp.GradScaler("cpu")
    bad: list[str] = []
    _name_nonfinite_outputs(model, bad)
    hold = EmulationHold()
    for step in range(steps):
        batch = batch_fn(step)
        optimizer.zero_grad(set_to_none=True)
        with hg.emulate_autocast("cuda"):
            loss = loss_fn(model, batch)
        if bad or not math.isfinite(loss.item()):
            return step, bad[0] if bad else "loss"
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    del hold
    return None


def _name_nonfinite_outputs(model: nn.Module, bad: list[str]) -> None:
    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            if not _finite([o for o in outputs if isinstance(o, Tensor) and o.is_floating_point()]):
                bad.append(name)

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(watch(name or type(module).__name__))
