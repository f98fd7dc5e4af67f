"""The folder of one snapshot: its small files, and the manifest that lists all files.

Nothing in the other shards shows that a shard is lost, and tensors that no file covers stay uninitialized.
So the manifest that marks a snapshot as good lists every file with size and checksum, and all of them are
verified before anything is read.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import socket
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfguard.checkpoints.saving import lock
from halfguard.dist.collectives import rank, world_size
from halfguard.errors import RecordError
from halfguard.records import RankSnapshotRecord, SnapshotRecord, write_atomically
from halfguard.records.snapshot import FileChecksum, SnapshotManifest

# A lock on a folder of snapshots: two guards in one folder would restore each other's weights.
#
# The lock is the operating system's (``flock``). It ends with its process, so a killed run leaves
# no lock: the next run takes over its file. The file names host and process of its owner, for the
# error message.

logger = logging.getLogger("halfguard")

_held: set[int] = set()  # file descriptors of this process


class FolderLock:
    """A lock that one guard holds at a time, in any process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._release: weakref.finalize[..., FolderLock] | None = None

    def acquire(self) -> str:
        """Take the lock and return "", or return a description of its owner.

        Without locks (read-only folder, some network file systems) a warning is logged instead.
        """
        try:
            if self._take():
                return ""
            gc.collect()  # a guard that was dropped without close() may wait for this
            return "" if self._take() else self._owner()
        except OSError as error:
            logger.warning(
                "%s cannot be locked: %s. Make sure that no other run writes snapshots there.",
                self._path,
                error,
            )
            return ""

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def _take(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                lock(file)
                # The owner may have removed the file just before it let go.
                current = self._path.exists() and os.path.samestat(
                    os.fstat(file), self._path.stat()
                )
            except BlockingIOError:
                os.close(file)
                return False
            except OSError:
                os.close(file)
                raise
            if current:
                break
            os.close(file)
        _held.add(file)
        self._release = weakref.finalize(self, _unlock, file, self._path, os.getpid())
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the text
            os.ftruncate(file, 0)
            os.write(file, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
        return True

    def _owner(self) -> str:
        try:
            owner = json.loads(self._path.read_text())
            host, pid = owner["host"], owner["pid"]
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"
        if (host, pid) == (socket.gethostname(), os.getpid()):
            return "another guard of this process"
        return f"process {pid} on {host}"


def _unlock(file: int, path: Path, pid: int) -> None:
    if os.getpid() != pid:
        return
    _held.discard(file)
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        os.close(file)


def _close_in_child() -> None:
    """Close inherited files: a data loader that outlives its parent must not keep the lock."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


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
            raise RecordError(f"{name!r} is not the name of a file in this folder")
        if name not in sizes:
            raise RecordError(f"{name} is missing")
        if sizes[name] != expected.size:
            raise RecordError(f"{name} has {sizes[name]} bytes instead of {expected.size}")
    return files


def verify_share(path: Path, files: Mapping[str, FileChecksum]) -> None:
    """Raise unless this rank's share of the files is unchanged since they were written.

    The shares of all ranks are all files, so that each file is read by one of them.
    """
    for name in sorted(files)[rank() :: world_size()]:
        if FileChecksum.of(path / name) != files[name]:
            raise RecordError(f"the contents of {name} have changed since it was written")


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
