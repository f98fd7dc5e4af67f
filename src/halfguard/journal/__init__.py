"""Where records go: the append-only record of a run, and the counts that sum it up.

``steps.jsonl`` holds one row a line, in the order of writing, and is only ever appended to. A run that
is resumed from an earlier step goes on in the same file, so a step can occur twice; **the last row that
covers a step is the one that holds**. Closing the open window with ``Journal.flush`` whenever a
checkpoint is taken makes a resumed run begin where a row ends, so that no window is half replaced.

Nothing here imports torch.
"""

from halfguard.journal.journal import RUN_FILE, STEPS_FILE, Journal
from halfguard.journal.lines import read_rows
from halfguard.journal.run_environment import environment, run_info
from halfguard.journal.tally import Tally

__all__ = [
    "RUN_FILE",
    "STEPS_FILE",
    "Journal",
    "Tally",
    "environment",
    "read_rows",
    "run_info",
]
