"""When do a scaler's skipped steps mean that something is wrong? A pure rule, without a tensor.

A loss scale begins too large and is lowered by overflows: that is how it is calibrated, and no event. It is
one if the scale falls below 1, if 20 skips come in a row, if the script ends in a streak, or crashes in one.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_IN_A_ROW = 20
USUAL_SCALE = (
    2.0**16
)  # torch's initial one; a script may begin with a far larger one, and skip its way down
AT_THE_END = 3  # skips in a row, after a step that was applied
NEVER_APPLIED = 10  # skips in a row, if no step was ever applied


@dataclass
class SkipRule:
    """Counts skipped steps."""

    skips: int = 0
    streak: int = 0
    applied: int = 0

    def good(self) -> None:
        """Count a backward pass without overflow."""
        self.streak = 0
        self.applied += 1

    def overflow(self, scale: float) -> str:
        """Count an overflow; return why it is an event, or an empty string."""
        self.skips += 1
        self.streak += 1
        if scale < 1:
            return f"the loss scale fell to {scale:g}, and the gradients still overflow"
        calibrates = not self.applied and scale > USUAL_SCALE
        if self.streak >= MOST_IN_A_ROW and not calibrates:
            return f"{self.streak} steps in a row were skipped; the loss scale is {scale:g}"
        return ""

    def at_end(self, *, crashed: bool) -> str:
        """Return why the streak in which the script ended is an event, or an empty string."""
        if crashed and self.streak:
            return "the script crashed after a step that was skipped"
        if self.streak >= (AT_THE_END if self.applied else NEVER_APPLIED):
            return f"the last {self.streak} steps were skipped"
        return ""
