"""A hosted guard on two ranks: DDP with retries, and FSDP1, which the plain guard's tests do not cover."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from tests.support.models import differences
from tests.support.ranks import Group

INIT_SCALE, STEPS = 1024.0, 8
RETRY = {"scale": {"init": INIT_SCALE}, "skip": {"on_nonfinite": "retry_fp32"}}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp1": partial(FullyShardedDataParallel, use_orig_params=True, device_id=torch.device("cpu")),
}


def data(fault: str) -> list[tuple[Tensor, Tensor]]:
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank + 1)
    inputs = [torch.randn(8, 12, generator=generator) for _ in range(STEPS)]
    labels = [x[:, :4].argmax(1) for x in inputs]
    if fault == "overflow":
        inputs = [x * 1e6 for x in inputs]
    if fault == "nan" and rank == 1:  # on one rank only
        inputs[3] = inputs[3] * torch.nan
    pairs = list(zip(inputs, labels, strict=True))
    return pairs[:3] + pairs[4:] if fault == "without" else pairs


def train(wrapper: str, who: str, fault: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
    model = WRAPPERS[wrapper](net)
    optimizer = AdamW(model.parameters(), lr=1e-3, foreach=True)
    scaler: Any = ShardedGradScaler("cpu", init_scale=INIT_SCALE, enabled=who == "stock")
    guard = HostedGuard(model, optimizer, RETRY) if who == "guarded" else None
    scaler = scaler if guard is None else GuardScaler(guard)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    for batch in data(fault):
        if guard is not None:
            guard.begin(batch, repeat=loss if wrapper == "ddp" else None)
        with torch.autocast("cpu", torch.float16, enabled=who != "fp32"):
            value = loss(batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    # Plain lists: tensors cannot cross a pipe to a process that may have ended.
    found: dict[str, Any] = {"weights": [p.detach().tolist() for p in model.parameters()]}
    if guard is not None:
        counts = guard.summary()
        found |= {"retried": counts.retried, "skipped": sum(counts.skipped.values())}
    return found


def change_a_loss_on_rank_1(heal: bool) -> tuple[list[str], float, list[Any]]:
    """Train with an overflow in each step; from the third on, rank 1 changes its loss after the pass."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(12, 4))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    guard = HostedGuard(model, optimizer, RETRY | ({"heal": {}} if heal else {}))

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean()

    actions = []
    for step in range(4):
        with torch.autocast("cpu", torch.float16):
            loss = guard.forward(loss_fn, torch.randn(8, 12) * 1e6)
        if dist.get_rank() == 1 and step > 1:
            loss = loss * 2
        guard.scale(loss).backward()  # type: ignore[no-untyped-call]
        actions.append(str(guard.apply(optimizer).action))
        optimizer.zero_grad()
    weights = [p.detach().tolist() for p in model.parameters()]
    return actions, guard.scaler.get_scale(), weights


@pytest.mark.parametrize("heal", [False, True])
def test_a_loss_that_one_rank_alone_cannot_repeat_is_skipped_on_all(
    heal: bool, ranks: Group
) -> None:
    first, second = ranks(2).run(change_a_loss_on_rank_1, heal)
    assert first == second
    assert first[0] == ["retry_fp32", "retry_fp32", "skip", "skip"]


def weights(answers: list[dict[str, Any]]) -> list[Any]:
    return [answer["weights"] for answer in answers]


@pytest.mark.parametrize("wrapper", ["ddp", pytest.param("fsdp1", marks=pytest.mark.slow)])
def test_healthy_and_with_a_nan_batch_on_one_rank(wrapper: str, ranks: Group) -> None:
    group = ranks(2)
    for theirs, ours, skipped in (("healthy", "healthy", 0), ("without", "nan", 1)):
        stock = group.run(train, wrapper, "stock", theirs)
        guarded = group.run(train, wrapper, "guarded", ours)
        assert not differences(weights(stock), weights(guarded))
        assert [answer["skipped"] for answer in guarded] == [skipped] * 2


def test_every_step_retried_is_bitwise_the_fp32_run(ranks: Group) -> None:
    group = ranks(2)
    fp32 = group.run(train, "ddp", "fp32", "overflow")
    guarded = group.run(train, "ddp", "guarded", "overflow")
    assert not differences(weights(fp32), weights(guarded))
    assert [answer["retried"] for answer in guarded] == [STEPS] * 2
