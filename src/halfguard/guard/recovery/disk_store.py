"""Snapshots on disk, in torch's sharded format.

A folder is written in the background by all ranks, each its own part. It is valid only once it is marked
good. Folders that a killed run left unfinished have no mark, and are removed by the next run.

Work that can fail on one rank alone goes through ``run_on_all``, so that all ranks continue or stop together.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from halfguard.dist import checkpoint
from halfguard.dist.checkpoint import ShapeAndDtype
from halfguard.dist.collectives import (
    all_gather_object,
    broadcast_object,
    rank,
    run_on_all,
    world_size,
)
from halfguard.dist.wrapping import is_dtensor
from halfguard.errors import RecordError, UsageError
from halfguard.guard.recovery import snapshot_folder
from halfguard.guard.recovery.snapshot_folder import FolderLock
from halfguard.guard.recovery.snapshot_store import SnapshotState, SnapshotStore
from halfguard.incident.encoding import Encoder, decode
from halfguard.records import RankSnapshotRecord, SnapshotRecord
from halfguard.records.snapshot import FileChecksum


class ShardEncoder(Encoder):
    """Keeps DTensors unchanged: torch writes the part that each rank holds."""

    def _tensor(self, value: Tensor, name: str) -> Any:
        if not is_dtensor(value):
            return super()._tensor(value, name)
        self.tensors[name] = value
        return {"type": "tensor", "name": name}


def tensors_by_name(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a state, under the names that a snapshot gives them."""
    encoder = ShardEncoder()
    for name, part in parts.items():
        encoder.encode(part, name)
    return encoder.tensors


def empty_tensors(
    kinds: Mapping[str, ShapeAndDtype], live: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return empty tensors, sharded like the live tensor of that name or of its parent."""
    return {
        name: _like(live.get(name, live.get(name.rpartition(".")[0])), *kind)
        for name, kind in kinds.items()
    }


def _like(live: Tensor | None, size: torch.Size, dtype: torch.dtype) -> Tensor:
    if live is not None and is_dtensor(live) and live.shape == size:
        return torch.empty_like(live, dtype=dtype)
    return torch.empty(size, dtype=dtype)


logger = logging.getLogger("halfguard")

_T = TypeVar("_T")


@dataclass
class _Folder:
    path: Path
    files: dict[str, FileChecksum] = field(default_factory=dict)  # written by this rank
    saving: checkpoint.PendingSave | None = None


class DiskStore(SnapshotStore):
    """One folder per snapshot, in torch's sharded format.

    ``live`` returns the present tensors in the structure of a state: a tensor that is read is sharded like
    the live one of its name, or like the parameter that it is optimizer state of. ``device`` is the device of
    this rank's tensors.
    """

    capacity: ClassVar[int] = 2  # disks lose bits, and copy scripts lose files

    def __init__(
        self, folder: Path, device: torch.device, live: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._folder, self._device, self._live = folder, device, live
        self._lock = FolderLock(folder.with_name(f"{folder.name}.lock"))
        self._locked = False  # by rank 0, for all ranks

    def save(self, step: int, state: SnapshotState) -> _Folder | None:
        """Start to write a state; the files are complete when ``mark_good`` returns True.

        Return None, on all ranks, if any rank cannot write, for instance because the disk is full.
        """
        self._lock_folder()
        encoder = ShardEncoder()
        shared = {name: encoder.encode(part, name) for name, part in state.shared.items()}
        own = encoder.encode(state.own, snapshot_folder.rank_prefix(rank()))
        if encoder.problems:  # the same on every rank: they hold the same kinds of things
            raise UsageError(
                f"This state cannot be written to disk: {'; '.join(encoder.problems[:3])}.",
                cure="Use recovery.store='memory', or omit this value from the state_dict.",
            )
        held = _Folder(self._at(step))

        def make() -> None:
            if rank() == 0:
                record = SnapshotRecord(step=step, world_size=world_size(), shared=shared)
                held.files |= snapshot_folder.create(held.path, record)

        def add_own() -> None:
            held.files |= snapshot_folder.add_rank_record(held.path, RankSnapshotRecord(own=own))

        # The first rank makes the folder, then all write to it, then all send tensors.
        if not (self._written(make) and self._written(add_own)):
            self.discard(held)
            return None
        held.saving = checkpoint.start_saving(held.path, encoder.tensors)
        return held

    def mark_good(self, held: _Folder) -> bool:
        """Wait for the files of all ranks, and mark them good; return False if any write failed."""
        if not self._written(lambda: _finish(held)):
            return False
        wrote = all_gather_object({name: file.model_dump() for name, file in held.files.items()})
        files = {name: FileChecksum(**file) for theirs in wrote for name, file in theirs.items()}
        return self._written(
            lambda: snapshot_folder.mark_good(held.path, files) if rank() == 0 else None
        )

    def load(self, held: _Folder) -> SnapshotState:
        """Read a state, with the random state and statistics of this rank.

        If the number of ranks changed, statistics are those of rank 0 and the random state is left alone.
        Raise a RecordError on every rank if the snapshot is damaged for any of them.
        """
        self._lock_folder()
        path, live = held.path, tensors_by_name(self._live())
        # One rank looks at all files and sends what it found: if all did, N ranks would ask the file system
        # about N files each.
        files = self._read_by_first(path, lambda: snapshot_folder.read_manifest(path))
        self._read(path, lambda: snapshot_folder.verify_share(path, files))
        index = self._read_by_first(path, lambda: checkpoint.read_index(path))
        record, own, tensors = self._read(path, lambda: _prepared(path, index, live))
        self._read(path, lambda: checkpoint.load_into(path, tensors, index))
        state = self._read(path, lambda: _decoded(record, own, tensors))
        if record.world_size != world_size():
            _adapt(state, record.world_size)
        return state

    def discard(self, held: _Folder) -> None:
        with contextlib.suppress(Exception):  # it is removed anyway
            _finish(held)
        if rank() == 0:
            snapshot_folder.remove(held.path)

    def set_aside(self, held: _Folder) -> None:
        if rank() == 0:
            snapshot_folder.set_aside(held.path)

    def good(self) -> list[tuple[int, _Folder]]:
        self._lock_folder()
        steps = self._read_by_first(self._folder, lambda: snapshot_folder.good_steps(self._folder))
        return [(step, _Folder(self._at(step))) for step in steps]

    def close(self) -> None:
        """Let another guard use the folder; the next snapshot of this one locks it again."""
        self._lock.release()
        self._locked = False

    def _lock_folder(self) -> None:
        """Lock the folder, or raise a UsageError on every rank."""
        if self._locked:
            return
        owner = broadcast_object(0, self._lock.acquire() if rank() == 0 else "", self._device)
        if owner:
            raise UsageError(
                f"{owner[0].upper()}{owner[1:]} writes its snapshots to {self._folder}. Two guards in one "
                "folder would restore each other's weights.",
                cure="Give every guard its own run_dir, or call close() on the other guard first.",
            )
        self._locked = True

    def _at(self, step: int) -> Path:
        return self._folder / f"{step:09d}"

    def _written(self, work: Callable[[], object]) -> bool:
        """Write on every rank; return whether all succeeded. A full disk does not stop the run."""
        _, errors = run_on_all(work, self._device)
        if errors and rank() == 0:
            logger.warning("a snapshot could not be written: %s", "; ".join(errors[:3]))
        return not errors

    def _read(self, path: Path, work: Callable[[], _T]) -> _T:
        """Read on every rank, or raise on every rank."""
        result: _T
        result, errors = run_on_all(work, self._device)
        if errors:
            raise RecordError(
                f"The snapshot {path} cannot be read. {'; '.join(errors[:3])}.",
                cure=f"Restore its files, or remove {self._folder} to start again.",
            )
        return result

    def _read_by_first(self, path: Path, work: Callable[[], _T]) -> _T:
        """Read on rank 0 and return what it read on every rank, or raise on every rank."""
        result = self._read(path, lambda: work() if rank() == 0 else None)
        found: _T = broadcast_object(0, result, self._device)
        return found


def _finish(held: _Folder) -> None:
    saving, held.saving = held.saving, None
    if saving is not None:
        held.files |= checkpoint.wait_until_saved(saving)


def _prepared(
    path: Path, index: checkpoint.Index, live: Mapping[str, Tensor]
) -> tuple[SnapshotRecord, Any, dict[str, Tensor]]:
    """Return the records of a snapshot, and empty tensors for those that this rank reads."""
    record, own = snapshot_folder.read_records(path)
    mine = snapshot_folder.rank_prefix(snapshot_folder.owner_rank(record))
    wanted = {
        name: kind
        for name, kind in checkpoint.shapes_of(index).items()
        if name.startswith(f"{mine}.") or not name.startswith("rank-")
    }
    return record, own, empty_tensors(wanted, live)


def _decoded(record: SnapshotRecord, own: Any, tensors: Mapping[str, Tensor]) -> SnapshotState:
    shared = {name: decode(part, tensors) for name, part in record.shared.items()}
    return SnapshotState(shared, decode(own, tensors))


def _adapt(state: SnapshotState, taken_by: int) -> None:
    """Adapt the own state of rank 0 for a different number of ranks."""
    if any(name.startswith("optimizer") for name in state.own):
        raise UsageError(
            f"{taken_by} ranks took this snapshot, each with its own parameters, which cannot be divided "
            f"among {world_size()} ranks.",
            cure=f"Continue with {taken_by} ranks.",
        )
    state.own.pop("rng", None)
    logger.warning(
        "a snapshot of %d ranks was loaded on %d ranks, so random generators are not restored",
        taken_by,
        world_size(),
    )
