"""A weight that is not finite on one rank is named on all of them, and all take the same action."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

import halfguard as hg
from halfguard.numerics.tensor_rows import local_tensor
from tests.dist import jobs
from tests.support.ranks import Group


def break_a_weight(engine: jobs.Engine) -> tuple[str, str, str, float]:
    """Return action, cause, evidence and scale of a step after one rank's part of a weight became NaN."""
    model, net = jobs.make(engine)
    guard = hg.Guard(model, jobs.optimizer_of(model, "sgd"), {"scale": {"init": 64.0}})
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert guard.step(jobs.loss_fn, jobs.batch_of(0, ranks, rank)).applied
    if engine == "ddp" or rank == 1:  # shards differ between ranks, replicas must not
        with torch.no_grad():
            local_tensor(net.layers[1].weight).view(-1)[0] = math.nan  # type: ignore[arg-type]
    outcome = guard.step(jobs.loss_fn, jobs.batch_of(1, ranks, rank))
    weight = outcome.fault_report.bad_weight
    name = "none" if weight is None else f"{weight.name} {weight.value}"
    return str(outcome.action), str(outcome.cause), name, guard.scaler.get_scale()


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_all_ranks_name_the_same_weight(ranks: Group, engine: jobs.Engine) -> None:
    answers = ranks(2).run(break_a_weight, engine)
    assert answers == [("skip", "bad_weights", "layers.1.weight NaN", 64.0)] * 2
