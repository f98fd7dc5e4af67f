"""Two ranks act alike if one of them has a bad batch, and keep the weights of ranks that never saw it.

Each rank is a process of its own: two GPUs with NCCL, or two processes on the CPU with gloo.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from halfguard.guard.guard import Guard
from tests.support.devices import choosing
from tests.support.models import OPTIMIZERS, bare_step, batches, differences, loss_fn, make
from tests.support.ranks import Ranks

STEPS, SCALE, RANKS = 10, 64.0, 2
NAN_ON_RANK_1, OVERFLOW_ON_RANK_0 = 3, 6  # steps


def train(device: str, guarded: bool) -> tuple[list[list[str]], Any]:
    """Train a replica on each rank; return what was done, and the state at the end."""
    rank = dist.get_rank()
    place = f"{device}:{rank}" if device == "cuda" else device
    with choosing(place):
        net = make("transformer")
        model = DistributedDataParallel(net, [place] if device == "cuda" else None)
        optimizer = OPTIMIZERS["adamw-fused"](model.parameters())
        scaler = torch.amp.GradScaler(device, init_scale=SCALE)
        config = {"clip": {"max_norm": 1.0}, "scale": {"init": SCALE}, "desync": {"every": 2}}
        guard = Guard(model, optimizer, config) if guarded else None
        outcomes = []
        for step in range(STEPS):
            torch.manual_seed(1000 + 10 * step + rank)
            ((inputs, labels),) = batches(1, seed=100 * step + rank)
            if guard is not None:
                inputs[1] *= math.nan if (rank, step) == (1, NAN_ON_RANK_1) else 1.0
                overflows = (rank, step) == (0, OVERFLOW_ON_RANK_0)
                net.faulty.gradient_factor = 1e6 if overflows else 1.0  # type: ignore[union-attr,assignment]
                outcomes.append(guard.step(loss_fn, (inputs, labels)))
            elif step == OVERFLOW_ON_RANK_0:
                scaler.update(scaler.get_scale() / 2)
            elif step != NAN_ON_RANK_1:
                bare_step(model, optimizer, scaler, [(inputs, labels)], max_norm=1.0)
        if guard is not None:
            guard.close()
            scaler = guard.scaler
        done = [[str(outcome.action), str(outcome.cause)] for outcome in outcomes]
        return done, _on_host([net.state_dict(), optimizer.state_dict(), scaler.get_scale()])


def _on_host(state: Any) -> Any:
    return torch.utils._pytree.tree_map_only(Tensor, lambda x: x.detach().cpu(), state)


@pytest.mark.slow
def test_ranks_stay_alike(device: torch.device) -> None:
    if device.type not in ("cpu", "cuda"):
        pytest.skip(f"torch has no collectives for {device.type}")
    if device.type == "cuda" and not (
        torch.cuda.device_count() >= RANKS and dist.is_nccl_available()
    ):
        pytest.skip(f"needs {RANKS} GPUs and NCCL")
    group = Ranks(RANKS, "nccl" if device.type == "cuda" else "gloo")
    try:
        guarded = group.run(train, device.type, True)
        bare = group.run(train, device.type, False)
    finally:
        group.close()
    for (done, state), (_, by_hand) in zip(guarded, bare, strict=True):
        assert done[NAN_ON_RANK_1] == ["skip", "bad_batch"]
        assert done[OVERFLOW_ON_RANK_0] == ["skip", "gradient_overflow"]
        assert done == guarded[0][0]
        assert differences(state, guarded[0][1]) == []
        assert differences(state, by_hand) == []
