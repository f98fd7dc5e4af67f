"""The append-only journal of a run, and the counts that summarize it.

``steps.jsonl`` holds one row per line, in the order of writing. A run that is resumed from an earlier step
appends to the same file, so a step can occur twice: **the last row that covers a step is the valid one**.
Call ``Journal.flush`` whenever a checkpoint is taken. It ends the open group of healthy steps, so that a
resumed run begins where a row ends and never replaces half a group.

Importing this package does not import torch.
"""

from halfguard.journal.journal import RUN_FILE, STEPS_FILE, Journal
from halfguard.journal.jsonl import read_rows
from halfguard.journal.run_environment import collect_environment, make_run_info
from halfguard.journal.step_counter import StepCounter

__all__ = [
    "RUN_FILE",
    "STEPS_FILE",
    "Journal",
    "StepCounter",
    "collect_environment",
    "make_run_info",
    "read_rows",
]
