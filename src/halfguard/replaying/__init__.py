"""Replay a bad step: repeat it, find the operation where it began, and try possible cures."""

from halfguard.replaying.autopsy import replay
from halfguard.replaying.kept_answer import ANSWER_FILE, read_kept_answer
from halfguard.replaying.kept_operation import keep_operation
from halfguard.replaying.replayed_step import ReplayedStep, Result, Variation

__all__ = [
    "ANSWER_FILE",
    "ReplayedStep",
    "Result",
    "Variation",
    "keep_operation",
    "read_kept_answer",
    "replay",
]
