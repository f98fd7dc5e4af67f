"""Snapshots in a folder that outlives the run, in torch's sharded form.

A folder is written in the background and by all ranks together, each its own part. It counts only once it is
marked good; whatever a kill leaves behind half written has no mark, and is swept away by the next run.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halfguard.dist import checkpoint
from halfguard.dist.ranks import all_agree, rank, word_of, world_size
from halfguard.dist.wrapping import is_spread
from halfguard.errors import RecordError, UsageError
from halfguard.guard.stores import State
from halfguard.incident.encode import Encoder, decode
from halfguard.records import RankSnapshotRecord, SnapshotRecord, write_whole

logger = logging.getLogger("halfguard")

_GOOD = "good"
_SHARED = "snapshot.json"


@dataclass
class _Folder:
    path: Path
    saving: Future[Any] | None = None


class Disk:
    """One folder a snapshot, in torch's sharded form.

    ``live`` gives tensors that are in use now, by name: what is read of that name, or of one that begins
    with it, is spread over ranks as they are. ``device`` is where this rank's tensors lie.
    """

    def __init__(
        self, folder: Path, device: torch.device, live: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        self._folder, self._device, self._live = folder, device, live

    def save(self, step: int, state: State) -> _Folder | None:
        """Start to write a state; the files are whole when ``mark_good`` says so.

        None if some rank cannot write, a full disk for instance; then none of them does.
        """
        path = self._folder / f"{step:09d}"
        encoder = _Encoder()
        shared = {name: encoder.encode(part, name) for name, part in state.shared.items()}
        own = encoder.encode(state.own, _prefix(rank()))
        if encoder.problems:  # the same on every rank: they hold the same kinds of things
            raise UsageError(
                f"This state cannot be kept on disk: {'; '.join(encoder.problems[:3])}.",
                cure="Use recovery.store='memory', or leave the odd value out of that state_dict.",
            )
        record = SnapshotRecord(step=step, world_size=world_size(), shared=shared)
        own_record = RankSnapshotRecord(own=own)
        # The first rank makes the folder, then all write to it, then all send tensors.
        if not self._together(lambda: _make(path, record) if rank() == 0 else None):
            return None
        mine = path / f"{_prefix(rank())}.json"
        if not self._together(lambda: write_whole(mine, own_record.to_json())):
            return None
        return _Folder(path, checkpoint.start_saving(path, encoder.tensors))

    def mark_good(self, held: _Folder) -> bool:
        """Wait for the files, on all ranks, and mark them; False if some could not be written."""
        mark = held.path / _GOOD
        return self._together(lambda: _finish(held)) and self._together(
            lambda: write_whole(mark, "") if rank() == 0 else None
        )

    def _together(self, work: Callable[[], object]) -> bool:
        """Do something on every rank; whether it went well on all of them. A full disk stops no run."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
            logger.warning("a snapshot could not be written or read: %s", error)
            return all_agree(False, self._device)
        return all_agree(True, self._device)

    def load(self, held: _Folder) -> State:
        """Read a state; generators and statistics are those of this rank, or else left or the first's."""
        read: list[Any] = []
        if not self._together(lambda: read.extend(_read_records(held.path))):
            raise RecordError(
                f"The snapshot {held.path} cannot be read, by this rank or by another one.",
                cure="Remove its folder to go on from an earlier one, or to start anew.",
            )
        record, own, same = read
        tensors = self._read(held.path, _prefix(rank() if same else 0))
        shared = {name: decode(part, tensors) for name, part in record.shared.items()}
        state = State(shared, decode(own, tensors))
        if not same:
            if any(name.startswith("optimizer") for name in state.own):
                raise UsageError(
                    f"{record.world_size} ranks took this snapshot, each with parameters of its own; "
                    f"{world_size()} ranks cannot share them out.",
                    cure=f"Go on with {record.world_size} ranks.",
                )
            state.own.pop("rng", None)
            logger.warning(
                "snapshot of %d ranks read by %d: random generators start anew",
                record.world_size,
                world_size(),
            )
        return state

    def _read(self, path: Path, prefix: str) -> dict[str, Tensor]:
        wanted = {
            name: kind
            for name, kind in checkpoint.stored(path).items()
            if name.startswith(f"{prefix}.") or not name.startswith("rank-")
        }
        live = self._live()
        tensors = {
            name: _room(live.get(name, live.get(name.rpartition(".")[0])), *kind)
            for name, kind in wanted.items()
        }
        checkpoint.load_into(path, tensors)
        return tensors

    def forget(self, held: _Folder) -> None:
        """Remove the files."""
        with contextlib.suppress(Exception):  # half written is good enough to be removed
            _finish(held)
        if rank() == 0:
            shutil.rmtree(held.path, ignore_errors=True)

    def newest(self) -> tuple[int, _Folder] | None:
        """The last good snapshot of an earlier run, the same on every rank."""
        step = None
        if rank() == 0:
            taken = [path for path in self._folder.glob("*") if path.name.isdigit()]
            good = [path for path in taken if (path / _GOOD).exists()]
            for path in set(taken) - set(good):
                shutil.rmtree(path, ignore_errors=True)
            step = max((int(path.name) for path in good), default=None)
        step = word_of(0, step, self._device)
        return None if step is None else (step, _Folder(self._folder / f"{step:09d}"))


def _make(path: Path, record: SnapshotRecord) -> None:
    shutil.rmtree(path, ignore_errors=True)  # of a run that was killed
    path.mkdir(parents=True)
    write_whole(path / _SHARED, record.to_json())


def _read_records(path: Path) -> tuple[SnapshotRecord, Any, bool]:
    record = SnapshotRecord.from_json((path / _SHARED).read_bytes())
    same = record.world_size == world_size()
    mine = path / f"{_prefix(rank() if same else 0)}.json"
    return record, RankSnapshotRecord.from_json(mine.read_bytes()).own, same


def _finish(held: _Folder) -> None:
    saving, held.saving = held.saving, None
    if saving is not None:
        checkpoint.wait_for(saving)


class _Encoder(Encoder):
    """Keeps DTensors as they are: torch writes the part that lies on each rank."""

    def _tensor(self, value: Tensor, name: str) -> Any:
        if not is_spread(value):
            return super()._tensor(value, name)
        self.tensors[name] = value
        return {"type": "tensor", "name": name}


def _room(like: Tensor | None, size: torch.Size, dtype: torch.dtype) -> Tensor:
    if like is not None and is_spread(like) and like.shape == size:
        return torch.empty_like(like, dtype=dtype)
    return torch.empty(size, dtype=dtype)


def _prefix(of_rank: int) -> str:
    return f"rank-{of_rank:05d}"
