"""Replay a bad step: repeat it, find the operation where it began, and try possible cures."""

from halfguard.replaying.autopsy import ANSWER_FILE, read_kept_answer, replay
from halfguard.replaying.replayed_step import ReplayedStep, Result, Variation

__all__ = [
    "ANSWER_FILE",
    "ReplayedStep",
    "Result",
    "Variation",
    "read_kept_answer",
    "replay",
]
