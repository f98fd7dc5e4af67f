"""Whether plan, heal and replay name the same islands for one job, or islands of equal cost.

Famous development rows, and the planted and swallowed corpora without what they hold out; faults outside
every module are left out, because a plan has no lines for them. All run with CUDA's autocast rules. A
swallowed fault raises no incident, so there is nothing to replay.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import halfguard as hg
from benchmarks.famous.row import Row
from benchmarks.models.planted import FAULTS, PERIODIC
from benchmarks.models.planted import is_held_out as planted_held_out
from benchmarks.models.swallowed import PLANTED
from halfguard.errors import HalfguardError, NoPlanError
from halfguard.incident import open_incident
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision_names import Precision
from halfguard.records.plan import AnyIsland, Island, PrecisionPlan
from halfguard.replaying.cures import find_islands
from halfguard.replaying.replayed_step import ReplayedStep
from halfguard.replaying.trials import Trials, find_first_bad_number
from halfguard.trials.cost import StepCosts, counted_costs
from halfguard.workload import TrainingStep, Workload

Job = Callable[[], Workload]
STEPS = 40  # until healed
PLAN_STEPS = 8  # at least
EQUAL = 0.01  # of the FLOPs, as in the search
JOBS = 30


def jobs(rows: Sequence[Row]) -> Iterator[tuple[str, Job, bool]]:
    """Yield names, jobs, and whether the fault is swallowed."""
    for row in rows:
        if row.precision is Precision.FP16_MIXED and not row.half_base:
            yield row.name, row.workload, False
    for fault in (*FAULTS, *PERIODIC):
        if not fault.in_loss and not planted_held_out(fault.name) and _every(fault) <= 10:
            yield fault.name, lambda fault=fault: fault.job(0), False  # type: ignore[misc]
    for one in PLANTED:
        if one.module is not None and not one.held_out and one.phase == "forward":
            yield one.name, lambda one=one: _workload(one.make(0)), True  # type: ignore[misc]


def _every(fault: Any) -> int:
    return getattr(fault, "every", 1)


def _workload(step: Any) -> Workload:
    optimizer = torch.optim.SGD(step.model.parameters(), lr=1e-4)
    return Workload(step.model, step.loss_fn, [step.batch], optimizer)


def answers(job: Job, *, swallowed: bool) -> dict[str, Any]:
    """Return the islands that each names, and their share of FLOPs."""
    costs = _costs(job())
    with tempfile.TemporaryDirectory() as name:
        healed, steps = _heal(job(), Path(name))
        found: dict[str, list[AnyIsland] | str] = {"heal": healed}
        if not swallowed and (kept := sorted(Path(name).glob("incidents/*"))):
            found["replay"] = _replay(job(), kept[min(2, len(kept) - 1)])
    found["plan"] = _plan(job(), max(PLAN_STEPS, steps))
    return {
        name: islands
        if isinstance(islands, str)
        else {"islands": sorted(map(_name, islands)), "flops": costs.of(islands).flops}
        for name, islands in found.items()
    }


def are_equal(found: dict[str, Any]) -> bool:
    """Return whether all name the same islands, or islands of equal cost."""
    parts = list(found.values())
    if any(isinstance(part, str) for part in parts):
        return False
    shares = [part["flops"] for part in parts]
    same = all(part["islands"] == parts[0]["islands"] for part in parts)
    return same or (all(p["islands"] for p in parts) and max(shares) - min(shares) <= EQUAL)


def _name(island: AnyIsland) -> str:
    place = island.module if isinstance(island, Island) else island.code
    return f"{place or 'the whole model'}{' (rescaled)' if island.kind == 'rescaled' else ''}"


def _like_cuda(work: Workload) -> Callable[[nn.Module, Any], Any]:
    loss_of, device = work.loss, work.device

    def loss(model: nn.Module, batch: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):  # a repeat in FP32
            return loss_of(model, batch)
        with autocast_like_cuda(Precision.FP16_MIXED, device):
            return loss_of(model, batch)

    return loss


def _costs(work: Workload) -> StepCosts:
    step = TrainingStep(work, Precision.FP32)
    with counted_costs(work.model) as costs:
        step.loss_of(next(work.take(1)))
    return costs


def _heal(work: Workload, folder: Path) -> tuple[list[AnyIsland] | str, int]:
    """Return the islands, and the steps until they were made."""
    config = {"skip": {"on_nonfinite": "retry_fp32", "max_consecutive": 1000}, "heal": {}}
    guard = hg.Guard(work.model, work.optimizer, config, run_dir=folder)
    loss, file, steps = _like_cuda(work), folder / "plan.yaml", 0
    try:
        for batch in work.take(STEPS):
            steps += 1
            outcome = guard.step(loss, batch)
            if outcome.applied and not file.exists():
                guard.audit(loss, batch)  # as `watch` does once in an interval
            if file.exists():
                break
    except HalfguardError as error:
        return f"none: {error.message}", steps
    finally:
        guard.close()
    plan = PrecisionPlan.load(file) if file.exists() else PrecisionPlan()
    return [*plan.islands, *plan.lines], steps


def _replay(work: Workload, incident: Path) -> list[AnyIsland]:
    work.loss = _like_cuda(work)
    step = ReplayedStep(open_incident(incident), work)
    culprit = find_first_bad_number(step)
    return [] if culprit is None else list(find_islands(Trials(step), culprit))


def _plan(work: Workload, steps: int) -> list[AnyIsland] | str:
    try:
        plan = hg.plan(work, steps=steps)
    except NoPlanError:
        return []
    except HalfguardError as error:
        return f"none: {error.message}"
    return [*plan.islands, *plan.lines]
