"""Planted faults, cured automatically: does a run with the recommended cure learn what FP32 learns?

``scripts/soak cures [all | held-out | tuned | NAME ...]`` takes every fault through the same steps:
train with a guard until it leaves an incident (or, if it leaves none, until ``audit`` finds a swallowed
overflow), replay it, apply the recommended cure to a copy of the source or to the
configuration, train 200 steps in FP16, and compare the loss with FP32 runs of six seeds. The loss is that of
the trained model, in FP32, with compositions as they are meant.

A run counts as cured if its loss is at most the upper end of the 95% prediction interval of the FP32 runs.
The largest of six would be too strict: a seventh FP32 run exceeds it in one of seven cases.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from benchmarks.models.planted import FAULTS, Fault, is_held_out
from torch import Tensor, nn

from halfguard.errors import HalfguardError
from halfguard.guard.guard import Guard
from halfguard.incident import Incident, open_incident
from halfguard.incident.capture import BadStep, IncidentWriter
from halfguard.precision.emulation import autocast_like_cuda
from halfguard.precision.modes import full_precision
from halfguard.precision_names import Precision
from halfguard.records.autopsy import Autopsy, Cure
from halfguard.records.plan import PrecisionPlan
from halfguard.records.step import Action, StepRow
from halfguard.replaying.autopsy import replay
from halfguard.replaying.composition_rewrite import CompositionRewrite
from halfguard.step.random_state import capture_random_state, portable_random_state, seeded
from halfguard.tracing.audit import audit
from halfguard.trials.plans import apply_plan
from halfguard.workload import Workload
from halfguard.workload.training import TrainingStep
from tests.replaying.helper import edited, patched_module

STEPS, SEEDS, EVALUATED = 200, 6, 16
AUDITED = 10  # every such step, if the guard sees nothing
STUDENT = 2.571  # 97.5% quantile of Student's t with 5 degrees of freedom


@dataclass
class CureResult:
    """The way of one fault through the study."""

    fault: Fault
    named: bool = False  # the planted line was found
    cure: Cure | None = None
    applied: int = 0
    scale: float = math.nan
    loss: float = math.nan
    untreated: float = math.nan  # the same run without the cure
    full: list[float] = field(default_factory=list)  # FP32, one loss for each seed
    problem: str = ""

    @property
    def limit(self) -> float:
        """The upper end of the 95% prediction interval for one more FP32 run."""
        width = STUDENT * statistics.stdev(self.full) * math.sqrt(1 + 1 / len(self.full))
        return statistics.mean(self.full) + width

    @property
    def cured(self) -> bool:
        """Whether the loss is not above the spread of FP32's."""
        return self.loss <= self.limit

    @property
    def below_worst(self) -> bool:
        """Whether the loss is not above the largest of the FP32 runs."""
        return self.loss <= max(self.full)

    def __str__(self) -> str:
        spread = f"{min(self.full):.4g} to {max(self.full):.4g} | {self.limit:.4g}"
        cure = f"{self.cure.what}: {self.cure.trial}" if self.cure else "no cure found"
        verdict = "cured" if self.cured else "not cured"
        where, named = "loss" if self.fault.in_loss else "layer", "yes" if self.named else "no"
        return (
            f"| {self.fault.name} | {where} | {named} | {cure} | {self.applied} | {self.scale:g} "
            f"| {self.loss:.4g} | {spread} | {self.untreated:.4g} "
            f"| {verdict}{f' ({self.problem})' if self.problem else ''} |"
        )


def study(fault: Fault) -> CureResult:
    """Take one fault through the study."""
    result = CureResult(fault)
    result.full = [train(fault.job(seed), Precision.FP32)[2] for seed in range(SEEDS)]
    result.untreated = train(fault.job(0), Precision.FP16_MIXED)[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        incident = capture(fault, folder)
        if incident is None:
            result.problem = "the guard left no incident"
            return result
        autopsy = replay(incident, entry_of(fault))
        result.named = is_named(fault, autopsy)
        result.cure = autopsy.cure
        if autopsy.cure is None:
            result.problem = f"replay: {autopsy.reproduced}"
            return result
        try:
            workload, precision, scale = apply(fault, autopsy.cure, folder / "cure")
        except (NotImplementedError, subprocess.CalledProcessError) as error:
            result.problem = str(error)
            return result
        result.applied, result.scale, result.loss = train(workload, precision, scale)
    return result


def entry_of(fault: Fault) -> str:
    return f"{inspect.getmodule(fault.job).__name__}:{fault.job.__name__}"  # type: ignore[union-attr]


def is_named(fault: Fault, autopsy: Autopsy) -> bool:
    return autopsy.culprit is not None and autopsy.culprit.line == fault.line_number


def capture(fault: Fault, folder: Path) -> Incident | None:
    """Train with a guard, under CUDA's rules, until it leaves an incident."""
    workload, run = fault.job(0), folder / "run"
    loss = under_cuda_rules(workload)
    guard = Guard(workload.model, workload.optimizer, run_dir=run)
    with seeded(0):
        for batch in workload.take(STEPS):
            try:
                guard.step(loss, batch)
            except HalfguardError:  # it halted
                break
            if any(run.glob("incidents/*/*")):
                break
        guard.close()
    found = sorted((run / "incidents").glob("*"))
    if found:
        return edited(open_incident(found[0]), folder, device="cuda")
    return capture_finding(fault.job(0), folder)


def under_cuda_rules(workload: Workload) -> Callable[[nn.Module, Any], Tensor]:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with autocast_like_cuda(Precision.FP16_MIXED, workload.device):
            return torch.as_tensor(workload.loss(model, batch))

    return loss


def capture_finding(workload: Workload, folder: Path) -> Incident | None:
    """Train in FP16 until an audited step has a swallowed overflow; keep that step as an incident."""
    step, loss = TrainingStep(workload, Precision.FP16_MIXED), under_cuda_rules(workload)
    for index, batch in enumerate(workload.take(STEPS)):
        if index % AUDITED == 0:
            state = portable_random_state(capture_random_state())
            report = audit(functools.partial(loss, workload.model, batch), workload.model)
            if report.findings:
                row = StepRow(step=index, action=Action.SKIP, cause=None, loss=report.loss,
                              grad_norm=math.nan, scale=step.scaler.get_scale())  # fmt: skip
                bad = BadStep(row, [(batch, state, "")], {"scale": {"init": 65536.0, "floor": 1.0}},
                              "fp16-mixed", "cuda")  # fmt: skip
                writer = IncidentWriter(
                    folder / "found", keep=1, max_bytes=2**30, weights=True, environment={}
                )
                path = writer.capture(workload.model, bad)
                return None if path is None else open_incident(path)
        step(batch)
    return None


def apply(fault: Fault, cure: Cure, work: Path) -> tuple[Workload, Precision, float]:
    """Return the job with the cure, its precision and its initial loss scale."""
    precision, scale, make = Precision.FP16_MIXED, cure.scale or 65536.0, fault.job
    if cure.what == "operation":
        make = patched(fault, cure.patch, work)
    elif cure.what == "scale":
        scale = float(yaml.safe_load(cure.patch)["scale"]["init"])
    elif cure.what == "precision":
        precision = Precision(yaml.safe_load(cure.patch)["precision"])
    elif cure.what != "island":
        raise NotImplementedError(f"a cure of the {cure.what} is not applied automatically")
    workload = make(0)
    if cure.what == "island":
        apply_plan(workload.model, PrecisionPlan.from_yaml(cure.patch))
    return workload, precision, scale


def patched(fault: Fault, patch: str, work: Path) -> Callable[[int], Workload]:
    """Return the job of a patched copy of the source."""
    if not patch:
        raise NotImplementedError("there is no patch")
    module = patched_module(patch, f"cured_{fault.name}", work)
    make: Callable[[int], Workload] = getattr(module, fault.job.__name__)
    return make


def train(
    workload: Workload, precision: Precision, scale: float = 65536.0
) -> tuple[int, float, float]:
    """Return the number of applied steps, the last loss scale, and the loss of the trained model."""
    step, applied = TrainingStep(workload, precision, init_scale=scale), 0
    with seeded(workload.seed):
        for batch in workload.take(STEPS):
            step.backward(step.forward(batch))
            step.scaler.unscale_(workload.optimizer)
            finite = all(bool(grad.isfinite().all()) for grad in step.gradients())
            applied += finite
            if finite or step.scaler.is_enabled():
                step.update()
    batches: Iterator[Any] = workload.take(EVALUATED)
    return applied, step.scaler.get_scale(), evaluate(workload, batches)


@torch.no_grad()
def evaluate(workload: Workload, batches: Iterator[Any]) -> float:
    """Return the mean loss of a model in FP32, with compositions as they are meant."""
    losses = []
    with seeded(workload.seed), CompositionRewrite(lambda _: True, meaning=True):
        for batch in batches:
            with full_precision(workload.device.type):
                losses.append(workload.loss_of(batch).item())
    finite = [loss for loss in losses if math.isfinite(loss)]
    return sum(finite) / len(finite) if len(finite) * 2 > len(losses) else math.nan


def chosen(names: list[str]) -> list[Fault]:
    """Return the faults of one part of the study, or those that are named."""
    if names in ([], ["all"]):
        return list(FAULTS)
    if names in (["tuned"], ["held-out"]):
        return [f for f in FAULTS if is_held_out(f.name) == (names == ["held-out"])]
    return [fault for fault in FAULTS if fault.name in names]


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")
    logging.getLogger("halfguard").setLevel(logging.CRITICAL)
    print(
        "| fault | in | line named | cure | applied | scale | loss | FP32 | limit | untreated | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    results, start = [], time.monotonic()
    for fault in chosen(names):
        results.append(study(fault))
        print(results[-1], flush=True)
    cured = sum(result.cured for result in results)
    silent = sum(not result.cured and result.cure is None for result in results)
    below = sum(result.below_worst for result in results)
    print(f"\n{cured} of {len(results)} cured ({below} below the largest of {SEEDS} FP32 runs).")
    within = sum(result.untreated <= result.limit for result in results)
    print(f"Untreated, {within} are within the interval.")
    print(f"{silent} of the others say that no cure was found. {time.monotonic() - start:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
