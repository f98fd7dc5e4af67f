"""Named tensors on disk: each rank writes what it holds, and any number of ranks reads it back.

torch.distributed.checkpoint plans and cuts, in its safetensors form: its own form keeps a pickle beside the
tensors, and nothing here is ever unpickled. Saving goes on in the background while training goes on in the
foreground, so it speaks over a group of its own: two threads that share a group would mix up their messages.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from halfguard.dist.collectives import world_size
from halfguard.errors import RecordError
from halfguard.records.snapshot import FileSum

if TYPE_CHECKING:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    from halfguard.dist.summing_writer import SummingWriter

Kind = tuple[torch.Size, torch.dtype]


@dataclass(frozen=True)
class Saving:
    """Tensors on their way to the disk."""

    done: Future[Any]
    writer: SummingWriter


def _group() -> Any:
    return _group_beside(dist.group.WORLD) if world_size() > 1 else None


@lru_cache(maxsize=1)
def _group_beside(_default: Any) -> Any:
    """The group for saving and loading, over the hosts; made by all ranks at the first use."""
    return dist.new_group(backend="gloo")


def start_saving(folder: Path, tensors: Mapping[str, Tensor]) -> Saving:
    """Copy tensors to the host, and write them to ``folder`` in the background. Every rank must call.

    A DTensor is written by the ranks that hold its parts, any other tensor by one of those that name it.
    """
    # Imported where it is used: loading it takes longer than many a training step.
    from torch.distributed.checkpoint.state_dict_saver import async_save  # noqa: PLC0415

    from halfguard.dist.summing_writer import SummingWriter  # noqa: PLC0415

    _be_silent_about_being_alone()
    writer = SummingWriter(folder)
    done = async_save(
        {name: tensor.detach() for name, tensor in tensors.items()},
        storage_writer=writer,
        process_group=_group(),
        no_dist=world_size() == 1,
    )
    return Saving(cast("Future[Any]", done), writer)


def wait_for(saving: Saving) -> dict[str, FileSum]:
    """Wait until everything is on disk; the files that this rank wrote, as they were when it had.

    An error of any rank is raised on all of them.
    """
    with _errors_of_torch("written"):
        saving.done.result()
    return saving.writer.sums


def stored(folder: Path) -> dict[str, Kind]:
    """Names, whole sizes and dtypes of the tensors in a folder."""
    found: dict[str, Any] = _reader(folder).read_metadata().state_dict_metadata
    return {name: (entry.size, entry.properties.dtype) for name, entry in found.items()}


def load_into(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read tensors in place, each as it is spread here now. Every rank must call.

    What no file in the folder covers is left as it is, without an error: who calls must know that all of
    them are there.
    """
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415

    _be_silent_about_being_alone()
    with _errors_of_torch("read"):
        load(
            dict(tensors),
            storage_reader=_reader(folder),
            process_group=_group(),
            no_dist=world_size() == 1,
        )


@contextlib.contextmanager
def _errors_of_torch(what: str) -> Iterator[None]:
    from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415

    try:
        yield
    except CheckpointException as error:  # which is no Exception, and would pass every handler
        first = next(iter(error.failures.values()), (error,))[0]
        raise RecordError(f"The tensors could not be {what}: {first!r}") from error


def _be_silent_about_being_alone() -> None:
    # torch warns whoever saves from one process, in a thread that no warnings context reaches.
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or unini")


def _reader(folder: Path) -> HuggingFaceStorageReader:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader  # noqa: PLC0415

    return HuggingFaceStorageReader(str(folder))
