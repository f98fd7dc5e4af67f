"""After a bad step: repeat it, find where it began, and try what would have prevented it."""

from halfguard.replay.autopsy import replay
from halfguard.replay.step import ReplayedStep, Result, Variation

__all__ = ["ReplayedStep", "Result", "Variation", "replay"]
