"""torch's writer of shards, extended by checksums.

It reads its file back right after writing, in the background, so that a later reader can check that the file
has not changed. It is not part of ``checkpoint`` because importing torch's writer takes longer than many
training steps: only runs that save import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from halfguard.records.snapshot import FileChecksum


class ChecksumWriter(HuggingFaceStorageWriter):
    """Writes this rank's part to a file; afterwards ``checksums`` has its name and checksum."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.checksums: dict[str, FileChecksum] = {}
        self._folder = folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        written = super().write_data(plan, planner)
        written.wait()
        for name in {result.storage_data.relative_path for result in written.value()}:
            self.checksums[name] = FileChecksum.of(self._folder / name)
        return written
