"""The folder of one snapshot: its small files, and the mark that says what it must consist of.

A shard that is lost leaves no trace in those that are left, and what nobody reads into is memory as it was
found. So the mark that makes a snapshot good lists every file with its size and checksum, and nothing is read
before all of them have been compared with it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfguard.dist.collectives import rank, world_size
from halfguard.errors import RecordError
from halfguard.records import RankSnapshotRecord, SnapshotRecord, write_whole
from halfguard.records.snapshot import FileSum, SnapshotMark

_GOOD = "good"
_SHARED = "snapshot.json"


def prefix(of_rank: int) -> str:
    """What the names of a rank's own tensors and files begin with."""
    return f"rank-{of_rank:05d}"


def make(path: Path, record: SnapshotRecord) -> dict[str, FileSum]:
    """Make the folder, with what all ranks share; the files that this wrote."""
    shutil.rmtree(path, ignore_errors=True)  # of a run that was killed
    path.mkdir(parents=True)
    return _written(path / _SHARED, record.to_json())


def add_own(path: Path, record: RankSnapshotRecord) -> dict[str, FileSum]:
    """Add what this rank has for itself; the files that this wrote."""
    return _written(path / f"{prefix(rank())}.json", record.to_json())


def mark_good(path: Path, files: Mapping[str, FileSum]) -> None:
    """From now on this counts."""
    write_whole(path / _GOOD, SnapshotMark(files=dict(files)).to_json())


def check(path: Path) -> None:
    """Raise unless every file is what it was when it was written.

    Each rank looks for all files, since what it does not see it cannot read, and sums its share of them.
    """
    mark = SnapshotMark.from_json((path / _GOOD).read_bytes())
    for number, (name, expected) in enumerate(sorted(mark.files.items())):
        file = path / name
        if Path(name).name != name:
            raise RecordError(f"{name!r} is no file of this folder")
        if not file.is_file():
            raise RecordError(f"{name} is missing")
        size = file.stat().st_size
        if size != expected.size:
            raise RecordError(f"{name} has {size} of its {expected.size} bytes")
        if number % world_size() == rank() and FileSum.of(file) != expected:
            raise RecordError(f"{name} does not hold the bits that were written to it")


def owner(record: SnapshotRecord) -> int:
    """Whose own state this rank reads: its own, or the first one's where another number of ranks took it."""
    return rank() if record.world_size == world_size() else 0


def records(path: Path) -> tuple[SnapshotRecord, Any]:
    """What is shared, and what the owner of this rank's part has for itself."""
    record = SnapshotRecord.from_json((path / _SHARED).read_bytes())
    mine = path / f"{prefix(owner(record))}.json"
    return record, RankSnapshotRecord.from_json(mine.read_bytes()).own


def good_steps(home: Path) -> list[int]:
    """The steps of the good snapshots in a folder, the newest first; others are swept away."""
    steps = []
    for path in home.glob("*"):
        if not path.name.isdigit():
            continue
        if (path / _GOOD).exists():
            steps.append(int(path.name))
        else:
            remove(path)
    return sorted(steps, reverse=True)


def remove(path: Path) -> None:
    """Remove a folder, its mark first: a kill in the middle must not leave it on what is left."""
    with contextlib.suppress(OSError):
        (path / _GOOD).unlink()
    shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path) -> None:
    """Give a damaged folder another name: it is not looked at again, and not lost either."""
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(aside)


def _written(path: Path, text: str) -> dict[str, FileSum]:
    write_whole(path, text)
    return {path.name: FileSum.of(path)}
