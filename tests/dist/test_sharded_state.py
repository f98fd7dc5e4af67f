"""State of modules that FSDP2 shards themselves: put back like that of any other module, on every rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import SGD

from halfguard.dist.sharded_dtypes import sharded_dtypes
from halfguard.guard.hosted import HostedGuard
from halfguard.step.reach import home_of
from tests.support.ranks import Group

RETRY = {"skip": {"on_nonfinite": "retry_fp32"}, "scale": {"init": 256.0}}
HALF = MixedPrecisionPolicy(torch.float16, torch.float32)


class Counting(nn.Module):
    """A model with a statistic, and on the second rank with numbers that cannot be restored if ``lost``."""

    seen: Tensor

    def __init__(self, lost: bool) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(4))
        self.draw = partial(next, iter(n / 1024 for n in range(10**6)), 0.0)
        self.lost = lost and dist.get_rank() == 1

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        self.seen.lerp_(hidden.detach().float().mean(0), 0.1)
        if self.lost:
            hidden = hidden + torch.tensor([self.draw()], dtype=hidden.dtype)
        return self.last(hidden).float()  # type: ignore[no-any-return]


def train(lost: bool, fault: str) -> list[Any]:
    torch.manual_seed(0)
    model = Counting(lost)
    fully_shard(model.linear, mp_policy=HALF)
    fully_shard(model, mp_policy=HALF)
    optimizer = SGD(model.parameters(), lr=0.1)
    guard = HostedGuard(model, optimizer, RETRY)
    generator = torch.Generator().manual_seed(dist.get_rank())
    actions = []
    for step in range(5):
        x = torch.randn(3, 4, generator=generator)
        if fault and step == 2:
            if fault == "without":
                continue
            x[0] = {"nan": torch.nan, "large": 1e5}[fault] if dist.get_rank() else x[0]
        loss = guard.forward(lambda model, x: model(x).pow(2).mean(), x)
        guard.scale(loss).backward()  # type: ignore[no-untyped-call]
        actions.append(str(guard.apply(optimizer).action))
        optimizer.zero_grad()
    weights = [p.full_tensor().tolist() for p in model.parameters()]  # type: ignore[attr-defined]
    return [actions, model.seen.tolist(), weights]


def test_a_nan_batch_leaves_no_trace_in_buffers_of_sharded_modules(
    ranks: Group,
) -> None:
    bad, without = (ranks(2).run(train, False, fault) for fault in ("nan", "without"))
    for with_it, alone in zip(bad, without, strict=True):
        assert with_it[0][2] == "skip"
        assert with_it[1:] == alone[1:]


def test_a_difference_on_one_rank_is_looked_into_by_all(ranks: Group) -> None:
    """A third pass of that rank alone would wait forever for the others to gather weights."""
    for actions, _, weights in ranks(2).run(train, True, "large", timeout=60.0):
        assert actions == ["apply", "apply", "skip", "apply", "apply"]
        assert torch.tensor(weights[0]).isfinite().all()


def dtypes() -> tuple[list[Any], str]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    fully_shard(model[0], mp_policy=HALF)
    fully_shard(model[1], mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    fully_shard(model)
    found = [
        (g.module, g.parameters, str(g.stored), str(g.computed), str(g.reduced))
        for g in sharded_dtypes(model)
    ]
    return found, home_of(model[0])


def test_dtypes_of_every_group(ranks: Group) -> None:
    wide = "torch.float32"
    for found, home in ranks(2).run(dtypes):
        assert home == "torch.nn.modules.linear"
        assert found == [
            ("", ("2.weight", "2.bias"), wide, wide, wide),
            ("0", ("0.weight", "0.bias"), wide, "torch.float16", wide),
            ("1", ("1.weight", "1.bias"), wide, "torch.bfloat16", "torch.bfloat16"),
        ]
