"""torch's writer of shards, which also tells what it wrote.

It reads its file back where it wrote it, in the background, so that a later reader can tell whether that file
is still what it was. Apart from ``checkpoint``, since loading torch's part of it takes longer than many a
training step: only who saves pays for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from halfguard.records.snapshot import FileSum


class SummingWriter(HuggingFaceStorageWriter):
    """Writes this rank's part to a file; ``sums`` has its name and checksum when saving is over."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.sums: dict[str, FileSum] = {}
        self._folder = folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write, then sum; a file that cannot be read back was not written."""
        written = super().write_data(plan, planner)
        written.wait()
        for name in {result.storage_data.relative_path for result in written.value()}:
            self.sums[name] = FileSum.of(self._folder / name)
        return written
