"""The runs of a plan search: one FP32 run as the reference, and 16-bit runs that follow it or do not.

No set of islands is run twice. A run passes if it stays finite and its loss is within the tolerance of
the FP32 run's, at the end and on average over all steps. A run that does not pass has a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from halfguard.errors import UsageError
from halfguard.precision.modes import HALF_DTYPES
from halfguard.precision_names import Precision
from halfguard.probing.findings import describe_line
from halfguard.probing.probe import raise_user_failure
from halfguard.probing.ranges import find_scale_window, total_by_module
from halfguard.probing.training import (
    Failure,
    RunSetting,
    TrainingRun,
    audited_steps,
    train,
)
from halfguard.records.autopsy import Culprit
from halfguard.records.plan import AnyIsland
from halfguard.step.random_state import seeded
from halfguard.trials.cost import StepCosts, counted_costs
from halfguard.workload import TrainingStep, Workload
from halfguard.workload.training import Advance


@dataclass(frozen=True)
class IslandTrial:
    """One 16-bit run with its verdict; ``reason`` is empty if it passed."""

    islands: tuple[AnyIsland, ...]
    run: TrainingRun
    reason: str

    @property
    def culprit(self) -> Culprit | None:
        """The operation to blame: of the failure, or of an overflow that the run swallowed."""
        if self.run.failure is not None:
            return self.run.failure.culprit
        return next((fault.culprit for fault in self.run.faults if fault.culprit is not None), None)

    @property
    def step(self) -> int:
        """The step of the culprit."""
        if self.run.failure is not None:
            return self.run.failure.step
        return next((fault.step for fault in self.run.faults if fault.culprit is not None), 0)

    @property
    def passed(self) -> bool:
        """True if the run stayed finite and followed FP32."""
        return not self.reason


class IslandTrials:
    """The runs of one plan search."""

    def __init__(
        self,
        workload: Workload,
        precision: Precision,
        *,
        steps: int,
        tolerance: float,
        advance: Advance | None = None,
        watch: Callable[[IslandTrial], None] | None = None,
    ) -> None:
        self.workload, self.precision, self.steps = workload, precision, steps
        self.tolerance, self._advance, self._watch = tolerance, advance, watch
        self.reference = train(
            workload.fresh(), RunSetting(), steps, detail="range", advance=advance
        )
        raise_user_failure(self.reference)
        if self.reference.failure is not None:
            _raise_no_reference(workload, self.reference.failure)
        self.totals = total_by_module(self.reference.trace, self.reference.scales)
        self.scale = 2.0 ** find_scale_window(self.totals, 0.01).best
        self._known: dict[frozenset[AnyIsland], IslandTrial] = {}
        self._audited = audited_steps(
            steps
        )  # of the first trial; later, the steps that had a fault

    @property
    def count(self) -> int:
        """The number of 16-bit runs; the FP32 run is not counted."""
        return len(self._known)

    def of(self, islands: Sequence[AnyIsland]) -> IslandTrial:
        """Return the trial of a set of islands; run it if it is new."""
        key = frozenset(islands)
        if key not in self._known:
            setting = RunSetting(self.precision, tuple(islands), self.scale)
            fresh = self.workload.fresh()
            run = train(
                fresh,
                setting,
                self.steps,
                diagnose=True,
                audited=self._audited,
                advance=self._advance,
            )
            if not self._known:
                self._audited = frozenset(fault.step for fault in run.faults if not fault.raised)
            self._known[key] = IslandTrial(tuple(islands), run, self._find_reason(run))
            if self._watch is not None:
                self._watch(self._known[key])
        return self._known[key]

    def _find_reason(self, run: TrainingRun) -> str:
        """Return why the run does not follow FP32, or ""."""
        if run.failure is not None:
            return _describe_failure(run.failure)
        for fault in run.faults:
            if fault.culprit is not None:
                return f"{_describe(fault.culprit)} of step {fault.step}"
        reference = self.reference.losses
        end, reference_end = run.final_loss(), self.reference.final_loss()
        # A loss close to zero is compared relative to its first value.
        size = max(abs(reference_end), 0.01 * abs(reference[0]), 1e-12)
        if not abs(end - reference_end) <= self.tolerance * size:
            return f"the loss ends at {end:.4g} instead of {reference_end:.4g} in FP32"
        # Two runs may end alike by chance; on the same batches all steps must be alike.
        difference = sum(abs(a - b) for a, b in zip(run.losses, reference, strict=True))
        share = difference / max(sum(map(abs, reference)), 1e-12)
        if not share <= self.tolerance:
            return f"the loss differs from the FP32 loss by {share:.1%} on average"
        return ""


def count_costs(workload: Workload, precision: Precision) -> StepCosts:
    """Return what each place of one step computes, in a fresh copy of the job."""
    fresh = workload.fresh()
    step = TrainingStep(fresh, precision)
    with seeded(fresh.seed), counted_costs(fresh.model) as costs:
        step.loss_of(next(iter(fresh.take(1))))
    return costs


def _describe_failure(failure: Failure) -> str:
    culprit = failure.culprit
    if culprit is None:
        return f"step {failure.step} fails: {failure.message}"
    return f"{_describe(culprit)} of step {failure.step}"


def _describe(culprit: Culprit) -> str:
    did = (
        f"has a swallowed {culprit.swallowed}"
        if culprit.swallowed
        else "returns the first NaN or Inf"
    )
    return f"{describe_line(culprit)} {did} in the {culprit.phase} pass"


def _raise_no_reference(workload: Workload, failure: Failure) -> NoReturn:
    half = [n for n, p in workload.model.named_parameters() if p.dtype in HALF_DTYPES]
    if half:
        raise UsageError(
            f"An FP32 run for comparison is not possible because {len(half)} parameters are 16-bit "
            f"(the first is {half[0]}). Step {failure.step} fails: {failure.message}.",
            cure=(
                "Return the model with FP32 weights (model.float()) from the ENTRY. Autocast "
                "casts them to 16-bit."
            ),
        )
    raise UsageError(
        f"The workload is not finite in FP32 either: {failure.message} at step {failure.step}. "
        "FP32 islands cannot help.",
        cure="Check the data and the learning rate first.",
    )
