"""The folder of one snapshot: its small files, and the manifest that lists all files.

Nothing in the other shards shows that a shard is lost, and tensors that no file covers stay uninitialized.
So the manifest that marks a snapshot as good lists every file with size and checksum, and all of them are
verified before anything is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfguard.dist.collectives import rank, world_size
from halfguard.errors import RecordError
from halfguard.records import RankSnapshotRecord, SnapshotRecord, write_atomically
from halfguard.records.snapshot import FileChecksum, SnapshotManifest

_GOOD = "good"
_SHARED = "snapshot.json"


def rank_prefix(of_rank: int) -> str:
    """Return the prefix of the names of a rank's own tensors and files."""
    return f"rank-{of_rank:05d}"


def create(path: Path, record: SnapshotRecord) -> dict[str, FileChecksum]:
    """Create the folder with the shared record; return the files written."""
    shutil.rmtree(path, ignore_errors=True)  # left by a run that was killed
    path.mkdir(parents=True)
    return _written(path / _SHARED, record.to_json())


def add_rank_record(path: Path, record: RankSnapshotRecord) -> dict[str, FileChecksum]:
    """Add the record of this rank; return the files written."""
    return _written(path / f"{rank_prefix(rank())}.json", record.to_json())


def mark_good(path: Path, files: Mapping[str, FileChecksum]) -> None:
    """Write the manifest: from now on the snapshot is good."""
    write_atomically(path / _GOOD, SnapshotManifest(files=dict(files)).to_json())


def read_manifest(path: Path) -> dict[str, FileChecksum]:
    """Return every file of a snapshot with its checksum; raise unless all are there, with their sizes.

    Only one rank does this, and sends the others what it found: it looks at every file.
    """
    files = dict(SnapshotManifest.from_json((path / _GOOD).read_bytes()).files)
    with os.scandir(path) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    for name, expected in sorted(files.items()):
        if Path(name).name != name:
            raise RecordError(f"{name!r} is not a file of this folder")
        if name not in sizes:
            raise RecordError(f"{name} is missing")
        if sizes[name] != expected.size:
            raise RecordError(f"{name} has {sizes[name]} of its {expected.size} bytes")
    return files


def verify_share(path: Path, files: Mapping[str, FileChecksum]) -> None:
    """Raise unless this rank's share of the files is unchanged since they were written.

    The shares of all ranks are all files, so that each file is read by one of them.
    """
    for name in sorted(files)[rank() :: world_size()]:
        if FileChecksum.of(path / name) != files[name]:
            raise RecordError(f"{name} does not hold the bits that were written to it")


def owner_rank(record: SnapshotRecord) -> int:
    """Return the rank whose own state to read: this one, or 0 if the number of ranks changed."""
    return rank() if record.world_size == world_size() else 0


def read_records(path: Path) -> tuple[SnapshotRecord, Any]:
    """Return the shared record, and the own state of ``owner_rank``."""
    record = SnapshotRecord.from_json((path / _SHARED).read_bytes())
    mine = path / f"{rank_prefix(owner_rank(record))}.json"
    return record, RankSnapshotRecord.from_json(mine.read_bytes()).own


def good_steps(home: Path) -> list[int]:
    """Return the steps of the good snapshots in a folder, newest first; remove unfinished ones."""
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
    """Remove a folder, its manifest first, so that an interrupted removal leaves no good snapshot."""
    with contextlib.suppress(OSError):
        (path / _GOOD).unlink()
    shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path) -> None:
    """Rename a damaged folder: it is kept, but not read again."""
    aside = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(aside)


def _written(path: Path, text: str) -> dict[str, FileChecksum]:
    write_atomically(path, text)
    return {path.name: FileChecksum.of(path)}
