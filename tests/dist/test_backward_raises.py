"""A forward or backward pass that raises on all ranks leaves no trace of its step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import halfguard as hg
from halfguard.guard.step_batches import StepBatches
from tests.dist.jobs import Engine, batch_of, full_state, loss_fn, make, optimizer_of
from tests.support.models import out_of_memory
from tests.support.ranks import Group


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


def give_up(*_: Any) -> None:
    raise torch.OutOfMemoryError("no room")


def raises_inside(engine: Engine, kind: str) -> tuple[bool, Any]:
    """Raise in the middle of a forward pass, of the first step or of a trial; then train as ever."""
    model, net = make(engine)
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"heal": {}, "scale": {"init": 8.0}})
    batch = batch_of(0, dist.get_world_size(), dist.get_rank())
    assert guard._healing is not None
    batches = StepBatches(micro_batches=[guard._micro_batch(loss_fn, batch, None)])
    trials = guard._healing._bad_step(batches)._runner
    run = trials.in_half(8.0)
    hook = net.layers[1].register_forward_pre_hook(give_up)  # its weights are gathered
    with nullcontext() if kind == "undisturbed" else pytest.raises(torch.OutOfMemoryError):
        if kind == "step":
            guard.step(loss_fn, batch)
        elif kind == "trial":
            trials.gradients(run)
    hook.remove()
    finite = trials.gradients(run).finite
    for index in range(2):
        guard.step(loss_fn, batch_of(index, dist.get_world_size(), dist.get_rank()))
    return finite, full_state(model)


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_forward_pass_that_raises_half_way(ranks: Group, engine: Engine) -> None:
    _, expected = ranks(2).run(raises_inside, engine, "undisturbed")[0]
    for kind in ("step", "trial"):
        for finite, weights in ranks(2).run(raises_inside, engine, kind):
            assert finite
            assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_the_next_step_is_as_if_it_had_never_been(
    ranks: Group, engine: Engine, accumulate: int
) -> None:
    undisturbed = ranks(2).run(given_up, engine, accumulate, False)
    disturbed = ranks(2).run(given_up, engine, accumulate, True)
    for (norms, weights), (others, same) in zip(undisturbed, disturbed, strict=True):
        assert others == pytest.approx(norms, rel=1e-6)
        for name, value in weights.items():
            torch.testing.assert_close(same[name], value, rtol=1e-5, atol=1e-7)
