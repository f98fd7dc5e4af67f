"""Save and load named tensors: each rank writes its own part, and any number of ranks can read it back.

This uses torch.distributed.checkpoint with its safetensors format. Its default format contains a pickle, and
halfguard never unpickles anything. Saving runs in the background while training continues, so it uses its own
process group: if two threads shared a group, their messages would be mixed up. For the same reason a save or
load waits for the save before it, which may be that of another guard in this process.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor

from halfguard.dist.collectives import world_size
from halfguard.errors import RecordError
from halfguard.records.snapshot import FileChecksum

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

    from halfguard.dist.shard_files import ChecksumWriter, IndexedReader

Index: TypeAlias = "Metadata"
ShapeAndDtype = tuple[torch.Size, torch.dtype]


@dataclass(frozen=True)
class PendingSave:
    """A save that runs in the background."""

    done: Future[Any]
    writer: ChecksumWriter


_pending: list[Future[Any]] = []  # the last save of this process, if it may still use the group


def _free_group() -> Any:
    """Return the group for saving and loading, once no other save uses it; one rank needs none."""
    if world_size() == 1:
        return None
    wait(_pending)  # its error, if any, is for the guard that started it
    return _make_group(dist.group.WORLD)


@lru_cache(maxsize=1)
def _make_group(_default: Any) -> Any:
    """Make the process group for saving and loading, on the CPU; all ranks do so at the first use."""
    return dist.new_group(backend="gloo")


def start_saving(folder: Path, tensors: Mapping[str, Tensor]) -> PendingSave:
    """Copy tensors to the host, and write them to ``folder`` in the background. Every rank must call this.

    The ranks that hold a DTensor's shards write them; one of the ranks that name it writes any other tensor.
    """
    # Imported here because loading it takes longer than many training steps.
    from torch.distributed.checkpoint.state_dict_saver import async_save  # noqa: PLC0415

    from halfguard.dist.shard_files import ChecksumWriter  # noqa: PLC0415

    _ignore_single_process_warning()
    writer = ChecksumWriter(folder)
    done = cast(
        "Future[Any]",
        async_save(
            {name: tensor.detach() for name, tensor in tensors.items()},
            storage_writer=writer,
            process_group=_free_group(),
            no_dist=world_size() == 1,
        ),
    )
    _pending[:] = [done]
    return PendingSave(done, writer)


def wait_until_saved(saving: PendingSave) -> dict[str, FileChecksum]:
    """Wait until everything is on disk; return the checksums of the files that this rank wrote.

    An error on any rank is raised on all of them.
    """
    with _as_record_error("written"):
        saving.done.result()
    return saving.writer.checksums


def read_index(folder: Path) -> Index:
    """Return torch's index of a folder: each tensor, its parts and their files. Opens every file."""
    with _as_record_error("read"):
        return _reader(folder).read_metadata()


def shapes_of(index: Index) -> dict[str, ShapeAndDtype]:
    """Return the full shape and dtype of each tensor, by name."""
    found: dict[str, Any] = index.state_dict_metadata
    return {name: (entry.size, entry.properties.dtype) for name, entry in found.items()}


def load_into(folder: Path, tensors: Mapping[str, Tensor], index: Index) -> None:
    """Read tensors in place, with their current sharding. Every rank must call this, with the same index.

    Tensors that no file in the folder contains are left unchanged, without an error: the caller must check
    that all files are present.
    """
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    _ignore_single_process_warning()
    with _as_record_error("read"):
        load(
            dict(tensors),
            storage_reader=_reader(folder, index),
            process_group=_free_group(),
            no_dist=world_size() == 1,
        )


@contextlib.contextmanager
def _as_record_error(action: str) -> Iterator[None]:
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

    try:
        yield
    except CheckpointException as error:  # not an Exception: other handlers would not catch it
        first = next(iter(error.failures.values()), (error,))[0]
        raise RecordError(f"The tensors could not be {action}: {first!r}") from error


def _ignore_single_process_warning() -> None:
    # torch warns when a single process saves, in a thread that no warnings context reaches.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or unini")


def _reader(folder: Path, index: Index | None = None) -> IndexedReader:
    from halfguard.dist.shard_files import IndexedReader  # noqa: PLC0415

    return IndexedReader(folder, index)
