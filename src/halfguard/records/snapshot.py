"""What a snapshot holds beside its tensors."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from halfguard.records.base import Record


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
