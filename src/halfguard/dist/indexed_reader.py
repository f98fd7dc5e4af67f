"""torch's reader of shards, with an index that was made before.

torch's own reader opens every file of the folder on every rank, to learn which tensors are in it. Here one
rank does so and sends the others its index. It is not part of ``checkpoint`` because importing torch's reader
takes longer than many training steps: only runs that load import it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta


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
