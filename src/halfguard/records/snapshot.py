"""The records in a snapshot; its tensors are in files of their own."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from halfguard.records.base import Record, RecordPart

_CHUNK = 2**20


class SnapshotRecord(Record):
    """The state that all ranks share, as an encoded structure that refers to tensors by name."""

    kind: ClassVar[str] = "snapshot"

    step: int = Field(ge=0, description="update attempts before it was taken")
    world_size: int = Field(ge=1, description="ranks that wrote it; any number can read it")
    shared: Any


class RankSnapshotRecord(Record):
    """The state of one rank alone: random generators, running statistics."""

    kind: ClassVar[str] = "rank_snapshot"

    own: Any


class FileChecksum(RecordPart):
    """The size and checksum of a file when it was written."""

    size: int = Field(ge=0, description="bytes")
    crc32: int = Field(ge=0, lt=2**32, description="as computed by zlib")

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file in chunks, with the GIL released, so that other threads run."""
        size = crc32 = 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                size += len(chunk)
                crc32 = zlib.crc32(chunk, crc32)
        return cls(size=size, crc32=crc32)


class SnapshotManifest(Record):
    """Marks a snapshot as good, and lists its files, so that a missing file is noticed."""

    kind: ClassVar[str] = "snapshot_mark"

    files: dict[str, FileChecksum] = Field(description="every file of the folder, by name")
