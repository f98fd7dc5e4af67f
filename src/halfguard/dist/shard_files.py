"""torch's writer and reader of shards, extended by checksums and by an index that was made before.

The writer reads its file back right after writing, in the background, so that a later reader can check that
the file has not changed. torch's own reader opens every file of the folder on every rank, to learn which
tensors are in it; here one rank does so and sends the others its index. They are not part of ``checkpoint``
because importing torch's classes takes longer than many training steps: only runs that save or load do.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
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


class IndexedReader(HuggingFaceStorageReader):
    """Reads tensors of a folder; with an ``index`` it opens only the files that it needs."""

    def __init__(self, folder: Path, index: Metadata | None = None) -> None:
        super().__init__(str(folder))
        self._folder, self._index = folder, index

    def read_metadata(self) -> Metadata:
        """Return the index with the paths of this rank, to which its folder may have another path."""
        if self._index is None:
            return super().read_metadata()
        files = {
            part: replace(where, relative_path=str(self._folder / Path(where.relative_path).name))
            for part, where in self._index.storage_data.items()
        }
        return replace(
            self._index, storage_data=files, storage_meta=StorageMeta(load_id=self.load_id)
        )
