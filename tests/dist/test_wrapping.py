"""Wrappers around or inside the model make no difference to the guard."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import halfguard as hg
from halfguard.errors import UsageError
from tests.dist.jobs import batch_of, full_state, loss_fn, make, optimizer_of
from tests.support.ranks import Group

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
def test_gradients_are_held_back_through_every_wrapper(ranks: Group, wrapping: Wrapping) -> None:
    for plain, other in zip(
        ranks(2).run(reductions, "plain"), ranks(2).run(reductions, wrapping), strict=True
    ):
        assert plain[0] == other[0] == 3
        assert all(map(torch.equal, plain[2], other[2]))
        prefix = "inner.module." if wrapping == "inside" else ""
        assert other[1] == tuple(prefix + name for name in plain[1])


def refused(outside: str) -> str:
    """Guard a model that DDP wraps elsewhere; return the error."""
    ddp, net = make("ddp")
    second = DistributedDataParallel(nn.Linear(4, 4))
    given = net if outside == "model" else ddp
    optimizers = [optimizer_of(net, "sgd"), optimizer_of(second, "sgd")]
    guard = hg.Guard(given, optimizers[:1] if outside == "model" else optimizers)
    try:
        guard.step(lambda _, batch: second(ddp(batch[0])).sum(), batch_of(0, 2, dist.get_rank()))
    except UsageError as error:
        return str(error)
    return ""


def with_a_temperature() -> list[str]:
    """Train a parameter that DDP does not know; return the warnings."""
    ddp, _ = make("ddp")
    temperature = nn.Parameter(torch.ones(()))
    optimizer = SGD([*ddp.parameters(), temperature], lr=0.1)
    guard = hg.Guard(ddp, optimizer, {"scale": {"init": 8.0}})
    heard = Heard()
    logging.getLogger("halfguard").addHandler(heard)
    for index in range(2):
        batch = batch_of(index, 2, dist.get_rank())
        assert guard.step(lambda model, b: loss_fn(model, b) * temperature, batch).applied
    logging.getLogger("halfguard").removeHandler(heard)
    return heard.messages


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def test_parameters_that_nobody_averages_are_reported_once(ranks: Group) -> None:
    for messages in ranks(2).run(with_a_temperature):
        assert len(messages) == 1
        assert messages[0].startswith("1 of the optimizer's parameters are not in the model")


def both_in_one_module() -> tuple[float, float, list[Tensor]]:
    """Train two wrapped networks; return the gradient norm, the true one, and the weights."""
    (first, _), second = make("ddp"), DistributedDataParallel(nn.Linear(4, 4))
    model = nn.ModuleList([first, second])
    config = {"precision": "fp32", "skip": {"on_nonfinite": "retry_fp32"}}
    guard = hg.Guard(model, optimizer_of(model, "sgd"), config)

    def loss(_: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss_fn(lambda x: second(first(x)), batch)  # type: ignore[arg-type]

    batch = batch_of(0, 2, dist.get_rank())
    loss(model, batch).backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    outcome = guard.step(loss, batch)
    return outcome.grad_norm, norm.item(), [p.detach() for p in model.parameters()]


def test_ddp_outside_of_the_guards_model_is_refused_by_name(ranks: Group) -> None:
    for outside in ("model", "second network"):
        for error in ranks(2).run(refused, outside):
            assert "DistributedDataParallel averages gradients of this guard" in error
    (norm, expected, weights), other = ranks(2).run(both_in_one_module)
    assert norm == pytest.approx(expected, rel=1e-6)
    assert all(map(torch.equal, weights, other[2]))
