"""The script in FP32 from its first line: what its losses are compared with.

Casts to half become FP32 there, autocast is off, and scalers do nothing. A change that keeps numbers finite
is a fix only if the script then learns as it does in FP32: a loud NaN must not become a silent failure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from halfguard.investigation.passes import Event, PassResult
from halfguard.records.autopsy import ReplayTrial
from halfguard.records.script_answer import InFP32

NAME = "the script in FP32, from its first line"
_FEWEST = 2  # losses that are compared
_MOST_LOST = 0.5  # of what FP32 has gained
_NOISE = 3.0  # standard errors
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
        bad = "" if seen is None else f"bad at step {seen.step}: {seen.how}"
        note = result.error or bad or f"{result.steps} steps"
        good = self.judge(event) == "fine"
        return ReplayTrial(name=NAME, good=good, loss=result.loss, note=note[:200])

    def worse(self, losses: Sequence[float]) -> str:
        """Return by how much a run is worse at its end; empty if it is not, or if FP32 learns nothing.

        Both runs have the same batches, so that losses are compared in pairs. What FP32 gains is the way down
        from its highest quarter: a loss may rise at first.
        """
        count = min(len(losses), len(self.losses))
        part = count // 4
        if part < _FEWEST or self.judge(None) != "fine":
            return ""
        quarters = [self.losses[at : at + part] for at in range(0, 4 * part, part)]
        full, now = median(quarters[-1]), median(losses[3 * part : 4 * part])
        after = f"after {count} backward passes"
        text = f"it learns less than in FP32: loss {now:.4g}, in FP32 {full:.4g}, {after}"
        if not math.isfinite(now):
            return text
        gained = max(map(median, quarters)) - full
        apart = [a - b for a, b in zip(losses[3 * part :], quarters[-1], strict=False)]
        lost = median(apart)
        limit = max(_MOST_LOST * gained, _noise(apart))
        return text if gained > _noise(quarters[-1]) and lost > limit else ""


def _noise(values: Sequence[float]) -> float:
    """Return how far the median of values may be off."""
    middle = median(values)
    return _NOISE * median(abs(value - middle) for value in values) / math.sqrt(len(values))
