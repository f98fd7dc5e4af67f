"""Measure a row: bare FP16, FP32, upstream's fix, and the islands that the guard makes by itself.

The guard heals one run first. Its plan is then applied to a new model: costs are those of later steps.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import halfguard as hg
from benchmarks.famous.row import BATCHES, Row, matches, matching
from halfguard.errors import HalfguardError
from halfguard.precision_names import Precision
from halfguard.step.parameters import parameters_of
from halfguard.workload import TrainingStep, Workload, final_loss
from halfguard.workload.memory import measure_step_memory
from halfguard.workload.timing import medians, time_interleaved

Step = Callable[[Any], object]


@dataclass
class Healed:
    """What the guard did in a run of its own."""

    islands: list[str] = field(default_factory=list)  # modules and patterns, as in the plan
    lines: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    repeated: int = 0  # bad steps until the last healing, and forward passes that overflow after it
    scale_fell: int = (
        0  # steps after it whose gradients overflow while the loss scale finds its level
    )
    last_repeated: int = -1
    loss: float = math.nan
    seconds: float = 0.0
    error: str = ""


@dataclass
class Check:
    """Whether the model fails as published: in FP16, at this place, and not in FP32."""

    first: str  # where bare FP16 returns the first NaN or Inf
    at_place: bool
    bad: int  # of as many steps as there are batches
    of: int
    largest_weight: float  # fits half
    loss_before: float
    loss: float  # in FP32, after the steps

    @property
    def passed(self) -> bool:
        """Whether the row is what it says."""
        fails = self.at_place and 2 * self.bad > self.of
        return fails and self.largest_weight < 65504 and self.loss < self.loss_before


@dataclass
class Result:
    """The figures of one row; forms are ``bare``, ``fp32``, ``upstream`` and ``ours``."""

    name: str
    number: int
    held_out: bool
    steps: int
    check: Check
    healed: Healed
    verdict: str
    flops: dict[str, float]  # share of matrix products in FP32
    error: dict[str, float]  # of gradients, relative to FP32; NaN where they are not finite
    time: dict[str, float]  # processor seconds of a step
    memory: dict[str, int]  # bytes at the peak of a step
    loss: dict[str, float]
    spread: list[float]  # losses of FP32 from weights that differ by as much as half rounds them
    plan: list[str] | None = None
    note: str = ""


def check(row: Row, steps: int) -> Check:
    """Train in FP32, and look at every batch in bare FP16."""
    work = row.workload()
    largest = max(p.abs().max().item() for p in work.model.parameters())
    losses = train(plain(work, Precision.FP32), work, steps)
    work = row.lowered()
    step = plain(work, row.precision)
    batch = next(work.take(1))
    found = hg.find_first_nonfinite(lambda: step.loss_of(batch), work.model)
    bad = sum(not math.isfinite(step.loss_of(one)) for one in work.take(BATCHES))
    module = None if found is None else found.module
    return Check(
        "" if found is None else f"{module}: {found.op} ({found.phase})",
        module is not None and any(matches(module, pattern) for pattern in row.places),
        bad,
        BATCHES,
        largest,
        losses[0],
        final_loss(losses),
    )


def plain(work: Workload, precision: Precision) -> TrainingStep:
    """Return torch's own step with the rules of the CPU."""
    return TrainingStep(work, precision, cuda_rules=False)


def train(step: TrainingStep, work: Workload, steps: int) -> list[float]:
    return [step(one).item() for one in work.take(steps)]


def when_bad(row: Row) -> str:
    """Return what the guard does with bad steps: half weights have no FP32 to repeat them with."""
    return "skip" if row.precision.needs_master_weights else "retry_fp32"


def heal(row: Row, steps: int, folder: Path) -> Healed:
    """Train with a guard that heals; the plan is in ``folder`` afterwards."""
    work, healed, start = row.lowered(), Healed(), time.process_time()
    config = {"precision": row.precision.value, "skip": {"on_nonfinite": when_bad(row)}, "heal": {}}
    guard = hg.Guard(work.model, work.optimizer, config, run_dir=folder)
    losses, bad = [], {}
    try:
        for index, batch in enumerate(work.take(steps)):
            outcome = guard.step(work.loss, batch)
            losses.append(outcome.loss)
            if outcome.action != "apply":
                bad[index] = outcome.cause
    except HalfguardError as error:
        healed.error = str(error)
    made = [fault["since"] for fault in guard.state_dict()["healing"]["healed"]]
    last = max(made, default=steps)
    fell = [i for i, cause in bad.items() if i >= last and cause == "gradient_overflow"]
    healed.scale_fell, healed.repeated = len(fell), len(bad) - len(fell)
    healed.last_repeated = max((i for i in bad if i not in fell), default=-1)
    guard.close()
    healed.loss, healed.seconds = final_loss(losses), time.process_time() - start
    if (folder / "plan.yaml").exists():
        plan = hg.PrecisionPlan.load(folder / "plan.yaml")
        found: list[Any] = [*plan.islands, *plan.lines]
        healed.islands = [island.module for island in plan.islands]
        healed.lines = [f"{Path(line.file).name}: {line.code}" for line in plan.lines]
        healed.reasons = [re.sub(r"\S*/site-packages/", "", one.reason) for one in found]
    return healed


def verdict_of(row: Row, model: nn.Module, islands: Sequence[str], lines: Sequence[str]) -> str:
    """Compare islands with the published places: as published, part, more, inside, wider, other, or none."""
    if not islands:
        return "line" if lines else "none"
    found = {name for name, _ in matching(model, *islands)}
    published = {name for name, _ in matching(model, *row.places)}
    if found == published:
        return "published"
    if found < published:
        return "part"
    if found > published:
        return "more"
    if all(any(_is_inside(one, place) for place in published) for one in found):
        return "inside"
    if any(_is_inside(place, one) for one in found for place in published):
        return "wider"
    return "other"


def _is_inside(name: str, parent: str) -> bool:
    return not parent or name == parent or name.startswith(f"{parent}.")


class ProductDtypes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of matrix products by the dtype of what is multiplied."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops: dict[torch.dtype, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            # `addmm` and `baddbmm` have what is added first; autocast gives all of them one dtype.
            dtype = next(one.dtype for one in args if isinstance(one, Tensor))
            flops = count(*args, **(kwargs or {}), out_val=out)
            self.flops[dtype] = self.flops.get(dtype, 0) + flops
        return out

    @property
    def share(self) -> float:
        """The share of FP32."""
        return self.flops.get(torch.float32, 0) / max(1, sum(self.flops.values()))


def gradients_of(step: Step, work: Workload) -> Tensor | None:
    """Return the gradients of the first batch as one vector; None if no loss scale makes them finite."""
    optimizer = getattr(work.optimizer, "inner", work.optimizer)  # below FP32 master weights
    kept: list[Tensor] = []

    def keep(*_: Any) -> None:
        grads = [
            torch.zeros(()).expand_as(p) if p.grad is None else p.grad
            for p in parameters_of(optimizer)
        ]
        kept.append(torch.cat([one.detach().float().flatten() for one in grads]))

    handle = optimizer.register_step_pre_hook(keep)
    batch = next(work.take(1))
    for _ in range(20):  # the scale falls by half each time
        step(batch)
        if kept:
            break
    handle.remove()
    return kept[0] if kept and bool(kept[0].isfinite().all()) else None


def forms_of(row: Row, plan: Path, *, repeat: bool) -> dict[str, tuple[Step, Workload]]:
    """Return new models with their steps; without ``repeat``, no step is computed in FP32 instead."""
    fp32, bare, ours = row.workload(), row.lowered(), row.lowered()
    forms: dict[str, tuple[Step, Workload]] = {
        "fp32": (plain(fp32, Precision.FP32), fp32),
        "bare": (plain(bare, row.precision), bare),
    }
    if row.upstream is not None:
        fixed = row.lowered()
        row.upstream(fixed.model)
        forms["upstream"] = plain(fixed, row.precision), fixed
    bad = {"on_nonfinite": when_bad(row) if repeat else "skip", "max_consecutive": 1000}
    config: dict[str, Any] = {"precision": row.precision.value, "skip": bad}
    config |= {"plan": str(plan)} if plan.exists() else {}
    guard = hg.Guard(ours.model, ours.optimizer, config)
    forms["ours"] = (lambda batch: guard.step(ours.loss, batch)), ours
    return forms


def measure(row: Row, steps: int, *, rounds: int = 5, with_plan: bool = False) -> Result:
    """Return all figures of a row."""
    checked = check(row, steps)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        healed = heal(row, steps, folder)
        plan = folder / "plan.yaml"
        gradients = {
            form: gradients_of(*pair) for form, pair in forms_of(row, plan, repeat=False).items()
        }
        forms = forms_of(row, plan, repeat=True)
        flops, memory = {}, {}
        for form, (step, work) in forms.items():
            batch = next(work.take(1))
            for _ in range(12):  # the loss scale finds its level
                step(batch)
            with ProductDtypes() as products:
                step(batch)
            flops[form] = products.share
            memory[form] = measure_step_memory(
                partial(step, batch),
                model=work.model,
                optimizer=work.optimizer,
                device=work.device,
            ).peak
        runs = {form: partial(step, next(w.take(1))) for form, (step, w) in forms.items()}
        seconds = medians(time_interleaved(runs, rounds=rounds, clock=time.process_time))
    loss = {"fp32": checked.loss, "ours": healed.loss}
    if row.upstream is not None:
        fixed = row.lowered()
        row.upstream(fixed.model)
        loss["upstream"] = final_loss(train(plain(fixed, row.precision), fixed, steps))
    return Result(
        row.name,
        row.number,
        row.held_out,
        steps,
        checked,
        healed,
        verdict_of(row, row.workload().model, healed.islands, healed.lines),
        flops,
        {form: _error(found, gradients["fp32"]) for form, found in gradients.items()},
        seconds,
        memory,
        loss,
        [loss_from_moved_weights(row, steps, seed) for seed in range(3)],
        search_plan(row) if with_plan else None,
        row.note,
    )


def loss_from_moved_weights(row: Row, steps: int, seed: int) -> float:
    """Return how FP32 ends from other weights: so far are two runs without any fault from each other."""
    work, generator = row.workload(), torch.Generator().manual_seed(seed)
    for parameter in work.model.parameters():
        by = torch.rand(parameter.shape, generator=generator) * 2 - 1
        parameter.data *= 1 + by * 2**-11
    return final_loss(train(plain(work, Precision.FP32), work, steps))


def _error(found: Tensor | None, expected: Tensor | None) -> float:
    if found is None or expected is None:
        return math.nan
    return ((found - expected).norm() / expected.norm()).item()


def search_plan(row: Row) -> list[str]:
    """Return the islands of ``halfguard plan``, which knows no half weights."""
    if row.half_base or row.precision is not Precision.FP16_MIXED:
        return []
    try:
        return list(hg.plan(row.workload(), steps=8).modules)
    except HalfguardError as error:
        return [f"none: {error}"]
