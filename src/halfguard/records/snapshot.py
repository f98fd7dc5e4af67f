"""What a snapshot holds beside its tensors."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from halfguard.records.base import Record

_PIECE = 2**20


class SnapshotRecord(Record):
    """The state that all ranks share, as an encoded structure; tensors lie beside it by name."""

    kind: ClassVar[str] = "snapshot"

    step: int = Field(ge=0, description="update attempts before it was taken")
    world_size: int = Field(ge=1, description="ranks that took it; any other number can read it")
    shared: Any


class RankSnapshotRecord(Record):
    """The state that one rank has for itself: random generators, running statistics."""

    kind: ClassVar[str] = "rank_snapshot"

    own: Any


class FileSum(BaseModel):
    """What a file was when it was written: so many bytes, with this checksum."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int = Field(ge=0, description="bytes")
    crc32: int = Field(ge=0, lt=2**32, description="as zlib has it")

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file through, a piece at a time and without Python's lock: other threads go on."""
        size = crc32 = 0
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                crc32 = zlib.crc32(piece, crc32)
        return cls(size=size, crc32=crc32)


class SnapshotMark(Record):
    """Makes a snapshot a good one, and lists its files: one that is lost leaves no other trace."""

    kind: ClassVar[str] = "snapshot_mark"

    files: dict[str, FileSum] = Field(description="every file of the folder, by name")
