"""``plan``: the smallest set of FP32 islands with which a model stays finite and follows FP32.

Four stages, each with a few training runs:

1. *Search.* While the run fails, the cheapest islands that fix the step at which it fails are added: the
   same search and the same proof as in the guard (``trials``). That is all, unless no operation is to blame.
2. *Grow.* Take the modules with the least headroom in the FP32 run: one, two, four ... at a time.
3. *Shrink.* Drop the islands that are not needed (``shrink``). Replace a module by some of its children if
   that is enough.
4. *Prove.* Leave every island out once; an island that is not needed is dropped.

Finally, lines that lose more digits than rounding must become islands, if the error falls (``rounding``).

"Smallest" means that no island can be dropped or moved further in. It does not mean the fewest islands: the
whole model as one island is always the shortest plan, and never a useful one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from halfguard.errors import HalfguardError, NoPlanError, UsageError
from halfguard.formats import FP16
from halfguard.precision_names import Precision
from halfguard.probing.findings import cure_of_line
from halfguard.probing.island_trials import IslandTrial, IslandTrials, count_costs
from halfguard.probing.job_step import job_bench
from halfguard.probing.ranges import find_scale_window, to_scale_range
from halfguard.probing.shrink import drop_unneeded, shrink
from halfguard.records.plan import AnyIsland, Island, LineIsland, PlanEvidence, PrecisionPlan
from halfguard.records.ranges import headroom
from halfguard.records.rounding import LineInFloat
from halfguard.step.parameters import is_covered, is_inside, outermost
from halfguard.trials.bench import StepBench
from halfguard.trials.producer import Producer, name_of
from halfguard.trials.search import IslandSearch
from halfguard.workload import Workload
from halfguard.workload.rounding import island_for, rounding_of_job
from halfguard.workload.training import Advance

_ISLANDS = 16  # of a plan at most, a pattern counts once
TIGHT_HEADROOM = 4.0  # bits; a leaf module with less is tried before any container


def plan(
    workload: Workload,
    *,
    steps: int = 20,
    precision: Precision | str = Precision.FP16_MIXED,
    tolerance: float = 0.01,
    advance: Advance | None = None,
    watch: Callable[[IslandTrial], None] | None = None,
) -> PrecisionPlan:
    """Search the islands of ``workload``; every run trains a fresh copy of it for ``steps`` steps.

    A run follows FP32 if its loss is within ``tolerance`` of the FP32 run's, at the end and on average over
    all steps. On a CPU the runs follow CUDA's autocast rules. ``advance`` is called after every step,
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
            more = self._search(trial)
            if not more:
                return self._plan(self._grown())
            islands += more
        return self._plan(self._with_digits(islands))

    def _with_digits(self, islands: list[AnyIsland]) -> list[AnyIsland]:
        """Add the lines that lose more digits than rounding must, if FP32 there helps."""
        trials = self.trials
        try:
            report = rounding_of_job(
                trials.workload, steps=trials.steps, precision=trials.precision, islands=islands
            )
        except (HalfguardError, torch.OutOfMemoryError):  # the plan is finite without it
            return islands
        model = trials.workload.model
        found = {island_for(line, model): line for line in report.findings if line.confirmed}
        # A line of the loss is no island: only the guard could keep it in FP32.
        lost = {i: line for i, line in found.items() if isinstance(i, Island) or i.within}
        more = [*islands, *(island for island in lost if island not in islands)]
        if not lost or not trials.of(more).passed:
            return islands
        self._lost_digits = lost
        for island in islands:  # what it kept finite may be FP32 by now
            fewer = [other for other in more if other != island]
            _, bench, producer = self._needed_at[island]
            if trials.of(fewer).passed and bench.prove(fewer, producer).holds:
                more = fewer
        return more

    def _search(self, trial: IslandTrial) -> list[AnyIsland]:
        """Return the islands that fix the step at which a run failed; none if no operation is to blame."""
        producer, left = Producer.of(trial.culprit), _ISLANDS - len(trial.islands)
        if producer is None or not left:
            return []
        _raise_if_outside(trial)
        bench = job_bench(
            self.trials.workload.fresh(), self.trials.precision, trial.step, self.trials.scale
        )
        found = IslandSearch(bench, trial.islands).run(producer, left)
        self._needed_at |= {island: (trial.step, bench, p) for island, p in found.islands}
        return [island for island, _ in found.islands]

    def _grown(self) -> list[AnyIsland]:
        passes = self.trials.passes
        paths = shrink(self._grow(), passes)
        paths = drop_unneeded(self._narrow(paths), passes)
        order = {path: index for index, path in enumerate(self.candidates)}
        paths.sort(key=lambda path: order.get(path, -1))
        return [Island(module=path) for path in paths]

    # -- grow

    def _grow(self) -> list[str]:
        islands: list[str] = []
        size = 1
        while not (trial := self.trials.of([Island(module=path) for path in islands])).passed:
            left = [path for path in self._ranked if not is_covered(path, islands)]
            _raise_if_outside(trial)
            culprit = None if trial.culprit is None else trial.culprit.module
            if culprit and culprit in left:
                islands.append(culprit)
            elif left:
                islands += left[:size]
                size *= 2
            else:
                raise NoPlanError(
                    f"No set of islands helps: with the whole model in FP32, {trial.reason}.",
                    cure="The loss itself overflows: compute it from logits.float(), "
                    "outside of autocast.",
                )
        return islands

    @cached_property
    def _ranked(self) -> list[str]:
        """The candidates, likeliest first: leaf modules by headroom, containers from small to large."""
        room = {path: self._headroom(path) for path in self.candidates}
        leaf_modules = sorted(
            (p for p in self.candidates if not self._modules_inside(p)), key=room.__getitem__
        )
        tight = [p for p in leaf_modules if room[p] < TIGHT_HEADROOM]
        roomy = [p for p in leaf_modules if room[p] >= TIGHT_HEADROOM]
        containers = [p for p in self.candidates if p and self._modules_inside(p)]
        containers.sort(key=lambda path: (len(self._modules_inside(path)), room[path]))
        return [*tight, *containers, *roomy, *([""] if "" not in leaf_modules else [])]

    def _headroom(self, path: str) -> float:
        return min((headroom(value) for value in self.trials.totals[path].forward), default=0.0)

    def _modules_inside(self, path: str) -> list[str]:
        return [other for other in self.candidates if is_inside(other, path)]

    # -- narrow

    def _narrow(self, islands: Sequence[str]) -> list[str]:
        """Replace islands by modules inside them while that keeps fewer modules in FP32."""
        done: list[str] = []
        todo = list(islands)
        while todo:
            path = todo.pop(0)
            inner = self._narrow_one(path, [*done, *todo])
            if inner is None:
                done.append(path)
            else:
                todo = [*inner, *todo]
        return list(outermost(done))

    def _narrow_one(self, path: str, others: Sequence[str]) -> list[str] | None:
        children = outermost(self._modules_inside(path))
        if not children or not self.trials.passes([*others, *children]):
            return None
        ranked = [other for other in self._ranked if other in children]
        inner = shrink(ranked, self.trials.passes, always=others)
        # A list of all children is no improvement over the name of their parent.
        return inner if len(inner) < len(children) or len(inner) == 1 else None

    # -- result

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
            f"the error of the {what} is {line.before:.2g} instead of {line.tried:.2g}, "
            f"{line.share:.0%} of the lost accuracy"
        )

    def _error(self, island: AnyIsland, others: Sequence[AnyIsland]) -> str:
        """Return what is wrong with the gradients of the step that needs an island."""
        step, bench, producer = self._needed_at[island]
        error = bench.prove(others, producer).error
        return f"the gradients of step {step} differ from those in FP32 by {error:.0%}"


def _raise_if_outside(trial: IslandTrial) -> None:
    """Raise a NoPlanError if the fault is in no module: an island cannot cover it."""
    culprit = trial.culprit
    if culprit is None or culprit.kind != "op" or culprit.module is not None:
        return
    so_far = f" With {', '.join(map(name_of, trial.islands))}," if trial.islands else ""
    raise NoPlanError(
        f"No set of islands helps:{so_far} {trial.reason}. This line is outside every module, in the loss "
        "function for example, so no island covers it.",
        cure=cure_of_line(culprit),
    )
