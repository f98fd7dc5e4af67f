"""A process group for the length of a block, for programs that start their ranks themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist


@contextmanager
def process_group(
    backend: str, meeting_file: Path, rank: int, ranks: int, *, seconds: float
) -> Iterator[None]:
    """Join a group that meets in a file; a collective that takes longer than ``seconds`` raises."""
    dist.init_process_group(
        backend,
        f"file://{meeting_file.resolve()}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def nccl_is_available() -> bool:
    """Return whether this build of torch has NCCL."""
    return dist.is_available() and dist.is_nccl_available()
