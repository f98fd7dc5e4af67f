"""A recommender with the logarithm of a probability as its loss: a cure is judged by what the run learns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from benchmarks.models.zoo.base import seeded
from torch import Tensor, nn

import halfguard as hg
from halfguard.precision.emulation import emulate_autocast

STEPS = 125
Batch = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seed")]


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.mix = (
            nn.Embedding(50, 32),
            nn.Embedding(50, 32),
            nn.Linear(32, 32),
        )
        with torch.no_grad():
            self.users.weight.mul_(1.2)
            self.items.weight.mul_(1.2)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return torch.einsum("bd,bd->b", self.mix(self.users(user)), self.items(item))


def margin(model: nn.Module, batch: Batch) -> Tensor:
    user, liked, other = batch
    return model(user, liked) - model(user, other)


def with_capped_log(model: nn.Module, batch: Batch) -> Tensor:
    chance = torch.sigmoid(margin(model, batch))
    return -hg.ops.log(chance + 1e-8).mean()


def with_logsigmoid(model: nn.Module, batch: Batch) -> Tensor:
    return -F.logsigmoid(margin(model, batch).float()).mean()


def with_half_logsigmoid(model: nn.Module, batch: Batch) -> Tensor:
    return -F.logsigmoid(margin(model, batch)).mean()


def batches() -> list[Batch]:
    draw = torch.Generator().manual_seed(1)
    rows = [[torch.randint(50, (64,), generator=draw) for _ in range(3)] for _ in range(STEPS)]
    return [(user, liked, other) for user, liked, other in rows]


def train(loss_fn: Loss) -> tuple[int, float, float]:
    """Return the number of applied steps, the lowest loss scale, and the mean of the last losses."""
    model = seeded(0, Recommender)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    applied, scales, losses = 0, [65536.0], list[float]()
    for batch in batches():
        optimizer.zero_grad()
        with emulate_autocast("cuda"):
            loss = loss_fn(model, batch)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        applied += all(bool(grad.isfinite().all()) for grad in grads)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        losses.append(loss.item())
    return applied, min(scales), sum(losses[-10:]) / 10


def test_the_run_is_healthy_with_it_and_not_with_a_capped_logarithm() -> None:
    applied, scale, loss = train(with_logsigmoid)
    assert (applied, scale) == (STEPS, 65536)
    capped, capped_scale, capped_loss = train(with_capped_log)
    assert capped < applied
    assert capped_scale < scale
    assert capped_loss > loss


def test_a_half_loss_costs_the_first_step_its_scale() -> None:
    """The gradient of a half loss is the scale itself, and 65536 is the first number beyond half."""
    assert train(with_half_logsigmoid)[:2] == (STEPS - 1, 32768)
