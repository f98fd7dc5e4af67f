"""``plan``: the smallest set of FP32 islands with which a model trains finite and follows FP32.

Four moves, each a training run or a few:

1. *Grow.* While the run breaks, make an island of the module that made the first bad number; where that
   does not tell, of the modules with the least headroom in the FP32 run, one, two, four ... at a time.
2. *Shrink.* Drop what was not needed (``shrink``).
3. *Narrow.* A module with children is replaced by some of its children if that is enough.
4. *Prove.* Every island is left out once; a plan in which one can be spared is not done.

"Smallest" means that no island can be left out or moved further in. It does not mean the fewest possible:
making the whole model one island is always the shortest plan, and never the one wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from halfguard.errors import NoPlanError, UsageError
from halfguard.precision.modes import Precision
from halfguard.probing.ranges import as_scale_range, window_of
from halfguard.probing.shrink import inside, irreducible, outermost, shrink
from halfguard.probing.training import Advance
from halfguard.probing.trials import Trial, Trials
from halfguard.records.plan import Evidence, Island, PrecisionPlan
from halfguard.records.ranges import headroom
from halfguard.workload import Workload

NARROW = 4.0  # bits of headroom below which a leaf is tried before any container


def plan(
    workload: Workload,
    *,
    steps: int = 20,
    precision: Precision | str = Precision.FP16_MIXED,
    tolerance: float = 0.01,
    advance: Advance | None = None,
    watch: Callable[[Trial], None] | None = None,
) -> PrecisionPlan:
    """Search the islands of ``workload``; every run trains a fresh copy of it for ``steps`` steps.

    A run follows FP32 if its loss is within ``tolerance`` of the FP32 run's, at the end and on average over
    all steps. On a CPU the runs follow
    CUDA's autocast rules. ``advance`` is called after every step, ``watch`` after every trial.
    """
    precision = Precision(precision)
    if precision not in (Precision.FP16_MIXED, Precision.BF16_MIXED):
        raise UsageError(
            f"plan(precision={precision!r}): islands belong into a model that runs under autocast.",
            cure=f"Allowed: {Precision.FP16_MIXED}, {Precision.BF16_MIXED}.",
        )
    if steps < 1 or not tolerance > 0:
        raise UsageError(f"plan(steps={steps}, tolerance={tolerance}): both must be positive.")
    trials = Trials(
        workload, precision, steps=steps, tolerance=tolerance, advance=advance, watch=watch
    )
    return _Search(trials).run()


class _Search:
    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        # Modules that ran and returned numbers, in the order of the first step.
        self.candidates = list(trials.sums)

    def run(self) -> PrecisionPlan:
        passes = self.trials.passes
        islands = shrink(self._grow(), passes)
        islands = irreducible(self._narrow(islands), passes)
        order = {path: index for index, path in enumerate(self.candidates)}
        return self._plan(sorted(islands, key=lambda path: order.get(path, -1)))

    # -- grow

    def _grow(self) -> list[str]:
        islands: list[str] = []
        size = 1
        while not (trial := self.trials.of(islands)).passed:
            left = [path for path in self._ranked if not _covered(path, islands)]
            blamed = self._blamed(trial)
            if blamed is not None and blamed in left:
                islands.append(blamed)
            elif left:
                islands += left[:size]
                size *= 2
            else:
                raise NoPlanError(
                    f"No set of islands helps: with the whole model in FP32, {trial.why}.",
                    cure="The loss itself leaves the range: compute it from logits.float(), "
                    "outside of autocast.",
                )
        return islands

    def _blamed(self, trial: Trial) -> str | None:
        """The module of the first bad operation; the model's own code blames no one in particular."""
        culprit = None if trial.run.failure is None else trial.run.failure.culprit
        return culprit.module or None if culprit is not None else None

    @cached_property
    def _ranked(self) -> list[str]:
        """Candidates, most suspect first: leaves by headroom, then containers from small to large."""
        room = {path: self._headroom(path) for path in self.candidates}
        leaves = [p for p in self.candidates if not self._below(p)]
        tight = sorted((p for p in leaves if room[p] < NARROW), key=room.__getitem__)
        roomy = sorted((p for p in leaves if room[p] >= NARROW), key=room.__getitem__)
        containers = [p for p in self.candidates if p and self._below(p)]
        containers.sort(key=lambda path: (len(self._below(path)), room[path]))
        return [*tight, *containers, *roomy, *([""] if "" not in leaves else [])]

    def _headroom(self, path: str) -> float:
        return min((headroom(value) for value in self.trials.sums[path].forward), default=0.0)

    def _below(self, path: str) -> list[str]:
        return [other for other in self.candidates if inside(other, path)]

    # -- narrow

    def _narrow(self, islands: Sequence[str]) -> list[str]:
        """Move islands further in, as long as that leaves fewer modules in FP32."""
        done: list[str] = []
        todo = list(islands)
        while todo:
            path = todo.pop(0)
            inner = self._narrower(path, [*done, *todo])
            if inner is None:
                done.append(path)
            else:
                todo = [*inner, *todo]
        return list(outermost(done))

    def _narrower(self, path: str, others: Sequence[str]) -> list[str] | None:
        children = outermost(self._below(path))
        if not children or not self.trials.passes([*others, *children]):
            return None
        ranked = [other for other in self._ranked if other in children]
        inner = shrink(ranked, self.trials.passes, always=others)
        # All of several children are no gain over the one name that holds them.
        return inner if len(inner) < len(children) or len(inner) == 1 else None

    # -- what was found

    def _plan(self, islands: Sequence[str]) -> PrecisionPlan:
        reference, final = self.trials.reference, self.trials.of(islands).run
        lowered = {
            path: one for path, one in self.trials.sums.items() if not _covered(path, islands)
        }
        return PrecisionPlan(
            precision=self.trials.precision,
            islands=tuple(Island(module=path, reason=self._why(path, islands)) for path in islands),
            loss_scale=as_scale_range(window_of(lowered, 0.01)),
            evidence=Evidence(
                steps=self.trials.steps,
                trials=self.trials.count,
                modules=len(self.candidates),
                loss_fp32=reference.final_loss(),
                loss=final.final_loss(),
            ),
        )

    def _why(self, path: str, islands: Sequence[str]) -> str:
        reason = f"Without it {self.trials.of([i for i in islands if i != path]).why}."
        room = self._headroom(path) if path in self.trials.sums else 0.0
        if room < 0:
            top = max(self.trials.sums[path].forward)
            reason += f" In FP32 its outputs reach {top:.3g}, and FP16 ends at 65504."
        return reason


def _covered(path: str, islands: Sequence[str]) -> bool:
    return any(path == island or inside(path, island) for island in islands)
