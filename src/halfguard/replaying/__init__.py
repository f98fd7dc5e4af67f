"""Replay a bad step: repeat it, find the operation where it began, and try possible cures."""

from halfguard.replaying.autopsy import replay
from halfguard.replaying.replayed_step import ReplayedStep, Result, Variation

__all__ = [
    "ReplayedStep",
    "Result",
    "Variation",
    "replay",
]
