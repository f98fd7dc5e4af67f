"""After a bad step: repeat it, find where it began, and try what would have prevented it."""

from halfguard.replaying.autopsy import replay
from halfguard.replaying.replayed_step import ReplayedStep, Result, Variation

__all__ = ["ReplayedStep", "Result", "Variation", "replay"]
