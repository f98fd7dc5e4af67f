"""Trial runs of a plan search: the FP32 run to follow, and the 16-bit runs that do or do not.

No set of islands is run twice. A run passes if it stays finite and its loss is within the tolerance of
the FP32 run's, at the end and on the way; if it does not pass, it says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.precision.modes import Precision
from halfguard.probing.probe import refuse_broken
from halfguard.probing.ranges import Sums, gather, window_of
from halfguard.probing.shrink import outermost
from halfguard.probing.training import Advance, Run, Setting, train
from halfguard.workload import Workload


@dataclass(frozen=True)
class Trial:
    """One 16-bit run with its verdict; ``why`` is empty if it passed."""

    islands: tuple[str, ...]
    run: Run
    why: str

    @property
    def passed(self) -> bool:
        """Whether the run stayed finite and followed FP32."""
        return not self.why


class Trials:
    """All runs of one search."""

    def __init__(
        self,
        workload: Workload,
        precision: Precision,
        *,
        steps: int,
        tolerance: float,
        advance: Advance | None = None,
        watch: Callable[[Trial], None] | None = None,
    ) -> None:
        self.workload, self.precision, self.steps = workload, precision, steps
        self.tolerance, self._advance, self._watch = tolerance, advance, watch
        self.reference = train(workload.fresh(), Setting(), steps, detail="range", advance=advance)
        refuse_broken(self.reference)
        if self.reference.failure is not None:
            raise UsageError(
                f"The workload is not finite in FP32 either: {self.reference.failure.message} at step "
                f"{self.reference.failure.step}. No island can cure that.",
                cure="Look at the data and the learning rate first.",
            )
        self.sums: dict[str, Sums] = gather(self.reference.trace, self.reference.scales)
        self._scale = 2.0 ** window_of(self.sums, 0.01).best
        self._known: dict[frozenset[str], Trial] = {}

    @property
    def count(self) -> int:
        """How many runs in 16 bits there were; the FP32 run is not one of them."""
        return len(self._known)

    def passes(self, islands: Sequence[str]) -> bool:
        """Whether the model with these islands follows FP32."""
        return self.of(islands).passed

    def of(self, islands: Sequence[str]) -> Trial:
        """The trial of a set of islands, run if it is new."""
        paths = outermost(islands)
        key = frozenset(paths)
        if key not in self._known:
            setting = Setting(self.precision, paths, self._scale)
            fresh = self.workload.fresh()
            run = train(fresh, setting, self.steps, diagnose=True, advance=self._advance)
            self._known[key] = Trial(paths, run, self._judge(run))
            if self._watch is not None:
                self._watch(self._known[key])
        return self._known[key]

    def _judge(self, run: Run) -> str:
        if run.failure is not None:
            return _told(run)
        theirs = self.reference.losses
        got, wanted = run.final_loss(), self.reference.final_loss()
        # A loss that has all but vanished is compared on the scale on which it started.
        size = max(abs(wanted), 0.01 * abs(theirs[0]), 1e-12)
        if not abs(got - wanted) <= self.tolerance * size:
            return f"the loss ends at {got:.4g} instead of FP32's {wanted:.4g}"
        # Two runs may end alike by chance; on the same batches they must also be alike on the way.
        apart = sum(abs(a - b) for a, b in zip(run.losses, theirs, strict=True))
        share = apart / max(sum(map(abs, theirs)), 1e-12)
        if not share <= self.tolerance:
            return f"the loss is {share:.1%} away from FP32's on the way"
        return ""


def _told(run: Run) -> str:
    failure = run.failure
    assert failure is not None  # noqa: S101 - the caller looked
    culprit = failure.culprit
    if culprit is None:
        return f"step {failure.step} breaks: {failure.message}"
    where = f"{_short(culprit.file)}:{culprit.line}" if culprit.file else culprit.place
    return (
        f"{culprit.op} at {where} makes the first bad number in the {culprit.phase} pass "
        f"of step {failure.step}"
    )


def _short(file: str) -> str:
    """The path from here if it is below, else the file's name: plans travel between machines."""
    path = Path(file)
    inside = path.is_relative_to(Path.cwd())
    return os.path.relpath(path) if inside else path.name
