"""A run of the script in FP32 from its first line, and how far another run falls short of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from halfguard.investigation.passes import Event, PassResult
from halfguard.investigation.script_passes import Investigation, Patched
from halfguard.records.autopsy import ReplayTrial
from halfguard.records.script_answer import InFP32

_IN_FP32_NAME = "the script in FP32, from its first line"
FURTHER = 50  # optimizer steps
_FEWEST = 2  # losses in a quarter
_MOST_LOST = 0.5  # of what FP32 has gained
_NOISE = 3.0  # standard errors
_DIVERGED = 2.0  # times the highest losses of FP32: noise of the run itself does not excuse that
OVER = ("finished", "exited", "steps", "late")  # ends of a script that ran well


@dataclass(frozen=True)
class Reference:
    """A run in FP32, and its losses."""

    result: PassResult
    losses: list[float]

    def judge(self, event: Event | None) -> InFP32:
        """Return whether it trains, beyond the step of an event if there was one."""
        result = self.result
        if result.event is not None and result.event.kind != "exception":
            return "fails"
        step, backward = (-1, -1) if event is None else (event.step, event.backward)
        over = result.ended in OVER and not result.error
        is_beyond = result.steps > step and result.backward > backward
        return "fine" if over and is_beyond else "unknown"

    def trial(self, event: Event | None) -> ReplayTrial:
        """Return the run as a row of the trials."""
        seen, result = self.result.event, self.result
        bad = "" if seen is None else f"failed at step {seen.step}: {seen.how}"
        note = result.error or bad or f"{result.steps} steps"
        good = self.judge(event) == "fine"
        return ReplayTrial(name=_IN_FP32_NAME, good=good, loss=result.loss, note=note[:200])

    def worse(self, losses: Sequence[float]) -> str:
        """Return by how much a run is worse at its end; empty if it is not, or if FP32 learns nothing.

        Both runs have the same batches, so that losses are compared in pairs. What FP32 gains is the way down
        from its highest quarter: a loss may rise at first.
        """
        part = self._quarter(losses)
        if not part:
            return ""
        quarters = quarters_of(self.losses[: 4 * part])
        full, now = median(quarters[-1]), end_of(losses[: 4 * part])
        after = f"after {min(len(losses), len(self.losses))} backward passes"
        text = f"it learns less than in FP32: the loss is {now:.4g} (FP32: {full:.4g}) {after}"
        if not math.isfinite(now):
            return text
        highest = max(map(median, quarters))
        gained = highest - full
        apart = [a - b for a, b in zip(losses[3 * part :], quarters[-1], strict=False)]
        lost = median(apart)
        diverged = _DIVERGED * max(abs(highest), gained)
        limit = min(max(_MOST_LOST * gained, _noise(apart)), diverged)
        return text if gained > _noise(quarters[-1]) and lost > limit else ""

    def compare(self, losses: Sequence[float]) -> str:
        """Return the losses of both runs in the same backward passes; empty if there are too few."""
        part = self._quarter(losses)
        if not part:
            return ""
        now, full = (end_of(some[: 4 * part]) for some in (losses, self.losses))
        where = f"backward passes {3 * part + 1} to {4 * part}"
        return f"median loss of {where}: {now:.4g} (FP32: {full:.4g})"

    def _quarter(self, losses: Sequence[float]) -> int:
        """Return a quarter of how many losses both runs have; 0 if they cannot be compared."""
        part = min(len(losses), len(self.losses)) // 4
        return part if part >= _FEWEST and self.judge(None) == "fine" else 0


def quarters_of(losses: Sequence[float]) -> list[Sequence[float]]:
    """Return four parts of some losses, one after the other; none if they are too few."""
    part = len(losses) // 4
    return [losses[at : at + part] for at in range(0, 4 * part, part)] if part >= _FEWEST else []


def end_of(losses: Sequence[float]) -> float:
    """Return the median of the last quarter of some losses; NaN if they are too few."""
    return median(quarters[-1]) if (quarters := quarters_of(losses)) else math.nan


def _noise(values: Sequence[float]) -> float:
    """Return how far the median of values may be off."""
    middle = median(values)
    return _NOISE * median(abs(value - middle) for value in values) / math.sqrt(len(values))


def run_reference(one: Investigation, limits: Patched) -> Reference:
    """Run the script in FP32 from its first line."""
    result = one.run("sense", "running the script in FP32", trial=limits, in_fp32=True)
    return Reference(result, one.losses("fp32"))
