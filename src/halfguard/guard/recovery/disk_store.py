"""Snapshots in a folder that outlives the run, in torch's sharded form.

A folder is written in the background and by all ranks together, each its own part. It counts only once it is
marked good; whatever a kill leaves behind half written has no mark, and is swept away by the next run.

Whatever can go wrong on one rank alone is done by all of them, and then all hear how it went: they go on
together, or they stop together.
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
from halfguard.dist.collectives import (
    all_gather_object,
    broadcast_object,
    rank,
    run_on_all,
    world_size,
)
from halfguard.errors import RecordError, UsageError
from halfguard.guard.recovery import snapshot_folder
from halfguard.guard.recovery.sharded_tensors import ShardEncoder, by_name, room_for
from halfguard.guard.recovery.snapshot_store import State
from halfguard.incident.encoding import decode
from halfguard.records import RankSnapshotRecord, SnapshotRecord
from halfguard.records.snapshot import FileSum

logger = logging.getLogger("halfguard")

_T = TypeVar("_T")


@dataclass
class _Folder:
    path: Path
    files: dict[str, FileSum] = field(default_factory=dict)  # that this rank wrote
    saving: checkpoint.Saving | None = None


class Disk:
    """One folder a snapshot, in torch's sharded form.

    ``live`` gives what is in use now, by name and in the structure of a state: a tensor that is read is
    spread over ranks as the one in its place is, or the one that it is a part of the state of. ``device`` is
    where this rank's tensors lie.
    """

    keeps: ClassVar[int] = 2  # disks lose bits, and copying scripts lose files

    def __init__(
        self, folder: Path, device: torch.device, live: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._folder, self._device, self._live = folder, device, live

    def save(self, step: int, state: State) -> _Folder | None:
        """Start to write a state; the files are whole when ``mark_good`` says so.

        None if some rank cannot write, a full disk for instance; then none of them does.
        """
        encoder = ShardEncoder()
        shared = {name: encoder.encode(part, name) for name, part in state.shared.items()}
        own = encoder.encode(state.own, snapshot_folder.prefix(rank()))
        if encoder.problems:  # the same on every rank: they hold the same kinds of things
            raise UsageError(
                f"This state cannot be kept on disk: {'; '.join(encoder.problems[:3])}.",
                cure="Use recovery.store='memory', or leave the odd value out of that state_dict.",
            )
        held = _Folder(self._at(step))

        def make() -> None:
            if rank() == 0:
                record = SnapshotRecord(step=step, world_size=world_size(), shared=shared)
                held.files |= snapshot_folder.make(held.path, record)

        def add_own() -> None:
            held.files |= snapshot_folder.add_own(held.path, RankSnapshotRecord(own=own))

        # The first rank makes the folder, then all write to it, then all send tensors.
        if not (self._written(make) and self._written(add_own)):
            self.forget(held)
            return None
        held.saving = checkpoint.start_saving(held.path, encoder.tensors)
        return held

    def mark_good(self, held: _Folder) -> bool:
        """Wait for the files, on all ranks, and mark them; False if some could not be written."""
        if not self._written(lambda: _finish(held)):
            return False
        wrote = all_gather_object({name: file.model_dump() for name, file in held.files.items()})
        files = {name: FileSum(**file) for words in wrote for name, file in words.items()}
        return self._written(
            lambda: snapshot_folder.mark_good(held.path, files) if rank() == 0 else None
        )

    def load(self, held: _Folder) -> State:
        """Read a state; generators and statistics are those of this rank, or else left or the first's.

        RecordError on every rank if the snapshot is damaged for any of them.
        """
        path, live = held.path, by_name(self._live())
        record, own, tensors = self._read(path, lambda: _prepared(path, live))
        self._read(path, lambda: checkpoint.load_into(path, tensors))
        state = self._read(path, lambda: _decoded(record, own, tensors))
        if record.world_size != world_size():
            _adapt(state, record.world_size)
        return state

    def forget(self, held: _Folder) -> None:
        """Remove the files."""
        with contextlib.suppress(Exception):  # half written is good enough to be removed
            _finish(held)
        if rank() == 0:
            snapshot_folder.remove(held.path)

    def set_aside(self, held: _Folder) -> None:
        """Keep the files of a damaged snapshot out of the way."""
        if rank() == 0:
            snapshot_folder.set_aside(held.path)

    def good(self) -> list[tuple[int, _Folder]]:
        """The good snapshots of an earlier run, the newest first; the same on every rank."""
        steps = self._read(
            self._folder, lambda: snapshot_folder.good_steps(self._folder) if rank() == 0 else []
        )
        return [
            (step, _Folder(self._at(step))) for step in broadcast_object(0, steps, self._device)
        ]

    def _at(self, step: int) -> Path:
        return self._folder / f"{step:09d}"

    def _written(self, work: Callable[[], object]) -> bool:
        """Write something on every rank; whether it went well on all of them. A full disk stops no run."""
        _, complaints = run_on_all(work, self._device)
        if complaints and rank() == 0:
            logger.warning("a snapshot could not be written: %s", "; ".join(complaints[:3]))
        return not complaints

    def _read(self, path: Path, work: Callable[[], _T]) -> _T:
        """Read something on every rank, or raise on every rank."""
        result: _T
        result, complaints = run_on_all(work, self._device)
        if complaints:
            raise RecordError(
                f"The snapshot {path} cannot be read. {'; '.join(complaints[:3])}.",
                cure=f"Bring its files back as they were, or remove {self._folder} to start anew.",
            )
        return result


def _finish(held: _Folder) -> None:
    saving, held.saving = held.saving, None
    if saving is not None:
        held.files |= checkpoint.wait_for(saving)


def _prepared(
    path: Path, live: Mapping[str, Tensor]
) -> tuple[SnapshotRecord, Any, dict[str, Tensor]]:
    """What is known of a snapshot without its tensors, and room for those that this rank reads."""
    snapshot_folder.check(path)
    record, own = snapshot_folder.records(path)
    mine = snapshot_folder.prefix(snapshot_folder.owner(record))
    wanted = {
        name: kind
        for name, kind in checkpoint.stored(path).items()
        if name.startswith(f"{mine}.") or not name.startswith("rank-")
    }
    return record, own, room_for(wanted, live)


def _decoded(record: SnapshotRecord, own: Any, tensors: Mapping[str, Tensor]) -> State:
    shared = {name: decode(part, tensors) for name, part in record.shared.items()}
    return State(shared, decode(own, tensors))


def _adapt(state: State, taken_by: int) -> None:
    """Make the first rank's own state fit for any rank of another number of them."""
    if any(name.startswith("optimizer") for name in state.own):
        raise UsageError(
            f"{taken_by} ranks took this snapshot, each with parameters of its own; "
            f"{world_size()} ranks cannot share them out.",
            cure=f"Go on with {taken_by} ranks.",
        )
    state.own.pop("rng", None)
    logger.warning(
        "snapshot of %d ranks read by %d: random generators start anew", taken_by, world_size()
    )
