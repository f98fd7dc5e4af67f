"""Who takes part, and the ways in which ranks speak: a sum, everybody's word, the word of one.

Without a process group, or alone in it, each of them gives back what went in and sends nothing. With one,
every rank must make the same calls in the same order; no call here may depend on what one rank alone knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """How many ranks take part; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if world_size() > 1 else 0


class Sum:
    """A sum over all ranks that is under way; other work goes on until somebody joins."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._work = dist.all_reduce(values, async_op=True) if world_size() > 1 else None

    def join(self) -> Tensor:
        """The sum. On an accelerator its stream waits for it, the host does not."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._values


def all_reduce_max(value: Tensor) -> Tensor:
    """The largest of all ranks' values, element by element, on each of them."""
    if world_size() > 1:
        value = value.clone()
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return value


def all_gather_numbers(values: Sequence[float], device: torch.device) -> list[list[float]]:
    """The numbers of every rank, in the order of ranks. This waits: it is for unusual steps."""
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    if world_size() == 1:
        return [mine.tolist()]
    gathered = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered).tolist()


def all_agree(yes: bool, device: torch.device) -> bool:
    """Whether every rank says yes. This waits."""
    if world_size() == 1:
        return yes
    noes = torch.tensor([0.0 if yes else 1.0], device=device)
    dist.all_reduce(noes)
    return noes.item() == 0


def broadcast_object(source: int, value: Any, device: torch.device) -> Any:
    """What one rank says, on every rank; plain Python values. This waits."""
    if world_size() == 1:
        return value
    words = [value if rank() == source else None]
    dist.broadcast_object_list(words, src=source, device=device)
    return words[0]


def all_gather_object(value: Any) -> list[Any]:
    """What every rank says, in the order of ranks; plain Python values. This waits."""
    if world_size() == 1:
        return [value]
    words: list[Any] = [None] * world_size()
    dist.all_gather_object(words, value)
    return words


def broadcast_tensors(source: int, tensors: Sequence[Tensor]) -> None:
    """Overwrite tensors, which are contiguous, with those of one rank, in place. This waits."""
    if world_size() > 1:
        for tensor in tensors:  # as bytes: not every backend knows every dtype
            dist.broadcast(tensor.view(-1).view(torch.uint8), src=source)


def run_on_all(work: Callable[[], Any], device: torch.device) -> tuple[Any, list[str]]:
    """Do on every rank what may fail on one alone; return this rank's result and every rank's errors.

    A rank that stops where the others go on leaves them waiting in their next collective, forever. So all
    ranks wait here, and hear of every error. An error that many ranks share is reported once, by the first.
    """
    result, complaint = None, ""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        complaint = str(error) or repr(error)
    if all_agree(not complaint, device):
        return result, []
    words = all_gather_object(complaint)
    return result, [f"rank {words.index(word)}: {word}" for word in dict.fromkeys(words) if word]
