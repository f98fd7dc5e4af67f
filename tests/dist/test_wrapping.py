"""Wrappers around or inside the model make no difference to the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg
from tests.dist.jobs import batch_of, full_state, loss_fn, make, optimizer_of
from tests.support.ranks import Ranks

pytestmark = pytest.mark.slow

Wrapping = Literal["plain", "compiled", "inside"]


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def wrapped(ddp: nn.Module, wrapping: Wrapping) -> nn.Module:
    if wrapping == "plain":
        return ddp
    if wrapping == "inside":
        return Outer(ddp)
    compiled: nn.Module = torch.compile(ddp, backend="eager")  # type: ignore[assignment]
    return compiled


def reductions(wrapping: Wrapping) -> tuple[int, tuple[str, ...], list[Tensor]]:
    """Run three steps of four micro-batches, the last one bad; return reductions, culprits and weights."""
    ddp, _ = make("ddp")
    assert isinstance(ddp, DistributedDataParallel)
    calls = []

    def counted(_, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own
        calls.append(1)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size())

    ddp.register_comm_hook(None, counted)
    model = wrapped(ddp, wrapping)
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"accumulate": 4})
    for index in range(12):
        x, y = batch_of(index, dist.get_world_size(), dist.get_rank())
        outcome = guard.step(loss_fn, (x * float("nan") if index == 11 else x, y))
    return len(calls), outcome.culprits, list(full_state(ddp).values())


@pytest.mark.parametrize("wrapping", ["compiled", "inside"])
def test_gradients_are_held_back_through_every_wrapper(
    ranks: Callable[[int], Ranks], wrapping: Wrapping
) -> None:
    for plain, other in zip(
        ranks(2).run(reductions, "plain"), ranks(2).run(reductions, wrapping), strict=True
    ):
        assert plain[0] == other[0] == 3
        assert all(map(torch.equal, plain[2], other[2]))
        prefix = "inner.module." if wrapping == "inside" else ""
        assert other[1] == tuple(prefix + name for name in plain[1])
