"""Collective operations: sums, gathers and broadcasts of tensors, numbers and objects.

Without a process group, or with one rank, each returns its input and sends nothing. With several ranks, every
rank must make the same calls in the same order: no call may depend on something that only one rank knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this rank; 0 without a process group."""
    return dist.get_rank() if world_size() > 1 else 0


class AsyncSum:
    """An asynchronous sum over all ranks; other work continues until ``wait`` is called."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._work = dist.all_reduce(values, async_op=True) if world_size() > 1 else None

    def wait(self) -> Tensor:
        """Return the sum. On an accelerator the stream waits for it, not the host."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._values


def all_reduce_max(value: Tensor) -> Tensor:
    """Return the elementwise maximum over all ranks."""
    if world_size() > 1:
        value = value.clone()
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return value


def all_gather_numbers(values: Sequence[float], device: torch.device) -> list[list[float]]:
    """Return the numbers of every rank, in rank order. Waits for the device: only for unusual steps."""
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    if world_size() == 1:
        return [mine.tolist()]
    gathered = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered).tolist()


def all_agree(yes: bool, device: torch.device) -> bool:
    """Return whether ``yes`` is True on every rank. Waits for the device."""
    if world_size() == 1:
        return yes
    noes = torch.tensor([0.0 if yes else 1.0], device=device)
    dist.all_reduce(noes)
    return noes.item() == 0


def broadcast_object(source: int, value: Any, device: torch.device) -> Any:
    """Return the ``value`` of one rank on every rank; plain Python values. Waits for the device."""
    if world_size() == 1:
        return value
    values = [value if rank() == source else None]
    dist.broadcast_object_list(values, src=source, device=device)
    return values[0]


def all_gather_object(value: Any) -> list[Any]:
    """Return the ``value`` of every rank, in rank order; plain Python values. Waits for the device."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def run_on_all(work: Callable[[], Any], device: torch.device) -> tuple[Any, list[str]]:
    """Run ``work``, which may fail on some ranks only; return this rank's result and all ranks' errors.

    If one rank stopped and the others went on, they would wait forever in their next collective. So all ranks
    wait here and receive every error. An error that several ranks share is reported once, for the first.
    """
    result, message = None, ""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - the other ranks must be told of any error
        message = str(error) or repr(error)
    if all_agree(not message, device):
        return result, []
    messages = all_gather_object(message)
    return result, [f"rank {messages.index(m)}: {m}" for m in dict.fromkeys(messages) if m]
