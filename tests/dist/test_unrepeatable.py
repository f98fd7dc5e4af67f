"""A loss function that changes its batch on one rank only: all ranks skip the step, and nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import halfguard as hg
from tests.support.ranks import Ranks


def change_on_rank_0() -> list[tuple[str, str]]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    config: dict[str, Any] = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}
    guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    rank = dist.get_rank()

    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = model(batch["x"])
        if rank == 0:
            batch["weights"].div_(2)
        loss: Tensor = y.float().square().mean()
        return loss * (torch.inf if y.dtype == torch.float16 else 1.0)

    outcomes = [
        guard.step(loss_fn, {"x": torch.randn(8, 4), "weights": torch.ones(8)}) for _ in range(3)
    ]
    weights = [p.detach().sum().item() for p in model.parameters()]
    return [*((str(o.action), str(o.cause)) for o in outcomes), ("weights", str(weights))]


def test_all_ranks_decide_alike(ranks: Callable[[int], Ranks]) -> None:
    first, second = ranks(2).run(change_on_rank_0)
    assert first == second
    assert [action for action, _ in first[:3]] == ["skip", "retry_fp32", "retry_fp32"]
