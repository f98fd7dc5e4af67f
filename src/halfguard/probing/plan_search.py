"""``plan``: the smallest set of FP32 islands with which a model stays finite and follows FP32.

While a short training run fails, the cheapest islands that fix the step at which it fails are added: the same
search and the same proof as in the guard (``trials``). Then, or if a finite run does not follow FP32, lines
that lose more digits than rounding must become islands, if the error falls (``rounding``). Every island is
left out once; what fails then is its reason.

"Smallest" means that no island can be dropped or moved further in. It does not mean the fewest islands: the
whole model as one island is always the shortest plan, and never a useful one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from halfguard.errors import HalfguardError, NoPlanError, UsageError
from halfguard.formats import FP16
from halfguard.precision_names import Precision
from halfguard.probing.findings import cure_of_line
from halfguard.probing.island_trials import IslandTrial, IslandTrials, count_costs
from halfguard.probing.job_step import job_bench
from halfguard.probing.ranges import find_scale_window, to_scale_range
from halfguard.records.plan import AnyIsland, Island, LineIsland, PlanEvidence, PrecisionPlan
from halfguard.records.rounding import LineInFloat
from halfguard.step.parameters import is_covered
from halfguard.trials.bench import StepBench
from halfguard.trials.producer import Producer, name_of
from halfguard.trials.search import Found, IslandSearch
from halfguard.workload import Workload
from halfguard.workload.rounding import island_for, rounding_of_job
from halfguard.workload.training import Advance

_ISLANDS = 16  # of a plan at most, a pattern counts once


def plan(
    workload: Workload,
    *,
    steps: int = 20,
    precision: Precision | str = Precision.FP16_MIXED,
    tolerance: float = 0.01,
    advance: Advance | None = None,
    watch: Callable[[IslandTrial], None] | None = None,
) -> PrecisionPlan:
    """Find the FP32 islands that ``workload`` needs. Each trial trains a new copy for ``steps`` steps.

    A trial succeeds if its loss is within ``tolerance`` of the loss in FP32, both at the end and on average
    over all steps. On a CPU, CUDA's autocast rules apply. ``advance`` is called after every step, and
    ``watch`` after every trial.
    """
    precision = Precision(precision)
    if precision not in (Precision.FP16_MIXED, Precision.BF16_MIXED):
        raise UsageError(
            f"plan(precision={precision!r}): islands need a model that runs under autocast.",
            cure=f"Allowed: {Precision.FP16_MIXED}, {Precision.BF16_MIXED}.",
        )
    if steps < 1 or not tolerance > 0:
        raise UsageError(f"plan(steps={steps}, tolerance={tolerance}): both must be positive.")
    trials = IslandTrials(
        workload, precision, steps=steps, tolerance=tolerance, advance=advance, watch=watch
    )
    return _Search(trials).run()


class _Search:
    def __init__(self, trials: IslandTrials) -> None:
        self.trials = trials
        # Modules that ran and returned numbers, in the order of the first step.
        self.candidates = list(trials.totals)
        self._needed_at: dict[AnyIsland, tuple[int, StepBench, Producer]] = {}
        self._lost_digits: dict[AnyIsland, LineInFloat] = {}

    def run(self) -> PrecisionPlan:
        islands: list[AnyIsland] = []
        while not (trial := self.trials.of(islands)).passed:
            more = self._search(trial) if trial.culprit else self._find_lost_digits(islands)
            if not more:
                raise NoPlanError(
                    f"No set of islands helps: {trial.reason}, and no line of the model loses enough "
                    "accuracy to explain it.",
                    cure=(
                        "If two FP32 runs with different rounding differ just as much, use fewer "
                        "steps or a larger tolerance. Otherwise train in FP32 or BF16."
                    ),
                )
            islands += more
        return self._plan(self._with_digits(islands))

    def _search(self, trial: IslandTrial) -> list[AnyIsland]:
        """Return the islands that fix the step at which a run failed."""
        _raise_if_outside(trial)
        producer, trials, found = Producer.of(trial.culprit), self.trials, Found()
        bench = None
        if producer is not None:
            bench = job_bench(trials.workload.fresh(), trials.precision, trial.step, trials.scale)
        if producer is not None and bench is not None:
            search = IslandSearch(bench, trial.islands)
            found = search.run(producer, _ISLANDS - len(trial.islands))
            self._needed_at |= {island: (trial.step, bench, p) for island, p in found.islands}
        if not found.islands:
            _raise_not_found(trial, found)
        return [island for island, _ in found.islands]

    def _find_lost_digits(self, islands: Sequence[AnyIsland]) -> list[AnyIsland]:
        """Return lines that lose more digits than rounding must, if FP32 there helps."""
        trials = self.trials
        try:
            report = rounding_of_job(
                trials.workload, steps=trials.steps, precision=trials.precision, islands=islands
            )
        except (HalfguardError, torch.OutOfMemoryError):  # it takes several times a step's memory
            return []
        model = trials.workload.model
        found = {island_for(line, model): line for line in report.findings if line.confirmed}
        # A line of the loss is no island: only the guard could keep it in FP32.
        lost = {i: line for i, line in found.items() if isinstance(i, Island) or i.within}
        self._lost_digits |= lost
        return [island for island in lost if island not in islands]

    def _with_digits(self, islands: list[AnyIsland]) -> list[AnyIsland]:
        """Add the lines that lose digits, and drop the islands that are not needed with them."""
        lost = self._find_lost_digits(islands)
        more = [*islands, *lost]
        if not lost or not self.trials.of(more).passed:
            return islands
        for island, (_, bench, producer) in self._needed_at.items():
            fewer = [other for other in more if other != island]
            if self.trials.of(fewer).passed and bench.prove(fewer, producer).holds:
                more = fewer
        return more

    def _plan(self, islands: Sequence[AnyIsland]) -> PrecisionPlan:
        reference, final = self.trials.reference, self.trials.of(islands).run
        paths = [
            path
            for island in islands
            if isinstance(island, Island)
            for path in island.members(self.candidates)
        ]
        lowered = {
            path: one for path, one in self.trials.totals.items() if not is_covered(path, paths)
        }
        kept = [
            island.model_copy(update={"reason": self._reason(island, islands)})
            for island in islands
        ]
        return PrecisionPlan(
            precision=self.trials.precision,
            islands=tuple(island for island in kept if isinstance(island, Island)),
            lines=tuple(island for island in kept if isinstance(island, LineIsland)),
            loss_scale=to_scale_range(find_scale_window(lowered, 0.01)),
            evidence=PlanEvidence(
                steps=self.trials.steps,
                trials=self.trials.count,
                modules=len(self.candidates),
                loss_fp32=reference.final_loss(),
                loss=final.final_loss(),
                flops=self._share_of_flops(islands),
            ),
        )

    def _share_of_flops(self, islands: Sequence[AnyIsland]) -> float:
        if not islands:
            return 0.0
        return count_costs(self.trials.workload, self.trials.precision).of(islands).flops

    def _reason(self, island: AnyIsland, islands: Sequence[AnyIsland]) -> str:
        others = [other for other in islands if other != island]
        problems = [self.trials.of(others).reason, self._lost_by(island)]
        named = "; ".join(filter(None, problems)) or self._error(island, others)
        reason = f"Without it {named}."
        paths = island.members(self.candidates) if isinstance(island, Island) else []
        top = max(
            (max(self.trials.totals[path].forward, default=0.0) for path in paths), default=0.0
        )
        if top > FP16.largest:
            reason += f" In FP32 its outputs reach {top:.3g}; FP16's largest value is 65504."
        return reason

    def _lost_by(self, island: AnyIsland) -> str:
        line = self._lost_digits.get(island)
        if line is None:
            return ""
        what = "loss" if line.by == "loss" else "gradients"
        return (
            f"the error of the {what} is {line.before:.2g} instead of {line.tried:.2g}, {line.share:.0%} of "
            "the error"
        )

    def _error(self, island: AnyIsland, others: Sequence[AnyIsland]) -> str:
        """Return what is wrong with the gradients of the step that needs an island."""
        step, bench, producer = self._needed_at[island]
        error = bench.prove(others, producer).error
        return f"the gradients of step {step} differ from those in FP32 by {error:.0%}"


def _raise_not_found(trial: IslandTrial, found: Found) -> NoReturn:
    """Raise a NoPlanError for a step that no island fixes."""
    cure = "Train in FP32 or BF16, or change the line."
    if found.needed is not None:
        share = f"{found.cost.flops:.0%} of the matrix-product FLOPs"
        cure = f"Only {name_of(found.needed)} in FP32 is enough, which is {share}. {cure}"
    raise NoPlanError(f"No set of islands helps: {trial.reason}.", cure=cure)


def _raise_if_outside(trial: IslandTrial) -> None:
    """Raise a NoPlanError if the fault is in no module: an island cannot cover it."""
    culprit = trial.culprit
    if culprit is None or culprit.kind != "op" or culprit.module is not None:
        return
    so_far = f" With {', '.join(map(name_of, trial.islands))}," if trial.islands else ""
    raise NoPlanError(
        f"No set of islands helps:{so_far} {trial.reason}. This line is outside every module, for example "
        "in the loss function, so no island covers it.",
        cure=cure_of_line(culprit),
    )
