"""A backward pass that raises on all ranks leaves no trace of its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import halfguard as hg
from tests.dist.jobs import Engine, batch_of, full_state, loss_fn, make, optimizer_of
from tests.support.failing import out_of_memory
from tests.support.ranks import Ranks


def fails(model: nn.Module, batch: Any) -> Tensor:
    return out_of_memory(loss_fn(model, batch))


def given_up(engine: Engine, accumulate: int, failing: bool) -> tuple[list[float], Any]:
    """Run three steps; with ``failing``, one more before the last raises at its last micro-batch."""
    model, _ = make(engine)
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"accumulate": accumulate})
    rank, ranks, norms = dist.get_rank(), dist.get_world_size(), []
    for index in range(3 * accumulate):
        if failing and index == 2 * accumulate:
            for other in range(accumulate - 1):
                guard.step(loss_fn, batch_of(other, ranks, rank))
            with pytest.raises(torch.OutOfMemoryError):
                guard.step(fails, batch_of(0, ranks, rank))
        outcome = guard.step(loss_fn, batch_of(index, ranks, rank))
        if (index + 1) % accumulate == 0:
            norms.append(outcome.grad_norm)
    return norms, full_state(model)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_the_next_step_is_as_if_it_had_never_been(
    ranks: Callable[[int], Ranks], engine: Engine, accumulate: int
) -> None:
    undisturbed = ranks(2).run(given_up, engine, accumulate, False)
    disturbed = ranks(2).run(given_up, engine, accumulate, True)
    for (norms, weights), (others, same) in zip(undisturbed, disturbed, strict=True):
        assert others == pytest.approx(norms, rel=1e-6)
        for name, value in weights.items():
            torch.testing.assert_close(same[name], value, rtol=1e-5, atol=1e-7)
