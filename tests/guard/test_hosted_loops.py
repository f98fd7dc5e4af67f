"""Loops as hosts write them: several losses and optimizers, cleared gradients, steps that are left out."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.errors import UsageError
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.journal import read_rows
from halfguard.records import Action, HealthRow, HealthWarning
from tests.support.cases import each
from tests.support.hosts import INIT_SCALE

pytestmark = pytest.mark.usefixtures("seed")
CONFIG: dict[str, Any] = {"scale": {"init": INIT_SCALE}, "skip": {"on_nonfinite": "retry_fp32"}}


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.float16):
        return model(batch).float().mean()


OVERFLOWS = torch.full((2, 4), 1e5)  # infinite in half
HEALTHY = torch.ones(2, 4)


def guarded(*models: nn.Module) -> tuple[GuardScaler, HostedGuard, list[SGD]]:
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models]
    whole = models[0] if len(models) == 1 else nn.ModuleList(models)
    guard = HostedGuard(whole, optimizers, CONFIG)
    return GuardScaler(guard), guard, optimizers


def scaler_for(with_guard: bool, *models: nn.Module) -> tuple[torch.amp.GradScaler, list[SGD]]:
    """Return a guard's scaler or torch's own, and an optimizer for each model."""
    if with_guard:
        scaler, _, optimizers = guarded(*models)
        return scaler, optimizers
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models]
    return torch.amp.GradScaler("cpu", init_scale=INIT_SCALE), optimizers


def moved(model: nn.Linear) -> Tensor:
    return linear().weight.detach() - model.weight.detach()


def test_two_optimizers_may_both_be_clipped_before_the_first_steps() -> None:
    found = []
    for with_guard in (False, True):
        first, second = linear(), linear()
        scaler, (one, other) = scaler_for(with_guard, first, second)
        for model, optimizer in ((first, one), (second, other)):
            scaler.scale(loss_of(model, HEALTHY)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(one)
        scaler.step(other)
        scaler.update()
        found.append([moved(first), moved(second)])
    for stock, ours in zip(*found, strict=True):
        assert stock.abs().max() > 0.5
        assert torch.equal(stock, ours)


def test_gradients_that_were_unscaled_and_kept_are_refused() -> None:
    model = linear()
    scaler, guard, (optimizer,) = guarded(model)
    guard.begin(HEALTHY)
    scaler.scale(loss_of(model, HEALTHY)).backward()
    scaler.unscale_(optimizer)
    guard.begin(HEALTHY)
    with pytest.raises(UsageError, match="that have a different scale"):
        scaler.scale(loss_of(model, HEALTHY))


@each("late", [True, False])
@each("to_none", [True, False])
def test_a_step_that_was_unscaled_and_left_out_is_forgotten_once_it_is_cleared(
    late: bool, to_none: bool
) -> None:
    """Gradients are cleared between forward and backward pass, as many write it, or before both."""
    model = linear()
    scaler, guard, (optimizer,) = guarded(model)
    for left_out in (True, False):
        guard.begin(HEALTHY)
        if not late:
            optimizer.zero_grad(set_to_none=to_none)
        loss = loss_of(model, HEALTHY)
        if late:
            optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not left_out:
            scaler.step(optimizer)
        scaler.update()
    assert guard.last.applied
    assert torch.equal(moved(model), torch.ones(1, 4))


@pytest.mark.parametrize("cleared_late", [True, False])
def test_batches_whose_gradients_were_cleared_are_not_repeated(cleared_late: bool) -> None:
    model = linear()
    scaler, guard, (optimizer,) = guarded(model)
    fp32 = linear()
    for batch in (HEALTHY, OVERFLOWS):
        loss = guard.forward(loss_of, batch)
        if cleared_late:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not cleared_late and batch is HEALTHY:
            optimizer.zero_grad()
    scaler.step(optimizer)
    assert guard.last.action is Action.RETRY
    fp32(OVERFLOWS).mean().backward()  # the second batch alone
    SGD(fp32.parameters(), lr=1.0).step()
    assert torch.equal(model.weight, fp32.weight)


CHANGED: dict[str, Callable[[HostedGuard], Tensor]] = {
    "divided": lambda guard: guard.forward(loss_of, OVERFLOWS) / 4,
    "two forward passes": lambda guard: (
        guard.forward(loss_of, OVERFLOWS) + guard.forward(loss_of, HEALTHY)
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_loss_that_a_repetition_would_not_compute_is_skipped(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = linear()
    scaler, guard, (optimizer,) = guarded(model)
    scaler.scale(CHANGED[name](guard)).backward()
    scaler.step(optimizer)
    assert guard.last.action is Action.SKIP
    assert torch.equal(moved(model), torch.zeros(1, 4))
    assert "its loss was changed afterwards or combined from several" in caplog.text


def test_a_second_backward_pass_of_a_batch_is_not_repeated() -> None:
    """Adversarial training adds the loss of a changed model to the gradients of one batch."""
    model = linear()
    scaler, guard, (optimizer,) = guarded(model)
    scaler.scale(guard.forward(loss_of, OVERFLOWS)).backward()
    scaler.scale(loss_of(model, HEALTHY)).backward()
    scaler.step(optimizer)
    assert guard.last.action is Action.SKIP


def test_fp32_as_a_remedy_reaches_each_of_several_models() -> None:
    first, second = linear(), linear()
    _, guard, _ = guarded(first, second)
    guard._continue_with(guard.config.model_copy(update={"precision": "fp32"}))
    with torch.autocast("cpu", torch.float16):
        assert {model(HEALTHY).dtype for model in (first, second)} == {torch.float32}


@pytest.mark.parametrize(
    ("growth_interval", "spike"), [(1, 1.0), (1000, 1e38)], ids=["scale grows", "scale falls"]
)
@pytest.mark.parametrize("saved_between", [False, True])
def test_an_optimizer_that_steps_in_every_second_window_has_gradients_of_one_scale(
    growth_interval: int, spike: float, saved_between: bool
) -> None:
    first, second = linear(), linear()
    optimizers = [SGD(model.parameters(), lr=1.0) for model in (first, second)]
    scale = {"init": INIT_SCALE, "growth_interval": growth_interval}
    guard = HostedGuard(nn.ModuleList([first, second]), optimizers, {"scale": scale})
    scaler = GuardScaler(guard)
    for window in (1, 2):
        boost = spike if window == 1 else 1.0  # of the first model's loss alone
        loss = loss_of(first, HEALTHY) * boost + loss_of(second, HEALTHY)
        scaler.scale(loss).backward()
        scaler.step(optimizers[0])
        optimizers[0].zero_grad()
        if saved_between:
            guard.state_dict()  # ends the round: the scale may change here already
    scaler.step(optimizers[1])
    assert guard.last.applied
    assert guard.scaler.get_scale() != INIT_SCALE
    assert torch.equal(moved(second), torch.full((1, 4), 2.0))


def test_gradients_that_an_optimizer_leaves_and_clears_cost_nothing() -> None:
    """The gradients of a discriminator after its generator's step, cleared before its own."""
    first, second = linear(), linear()
    scaler, guard, (one, other) = guarded(first, second)
    for _ in range(2):
        scaler.scale(loss_of(first, HEALTHY) + loss_of(second, HEALTHY)).backward()
        scaler.step(one)
        for optimizer in (one, other):
            optimizer.zero_grad()
    scaler.scale(loss_of(second, HEALTHY)).backward()
    scaler.step(other)
    assert torch.equal(moved(second), torch.ones(1, 4))
    assert guard.counts.applied == 3


@each("masked", [False, True])
def test_losses_of_single_samples_are_scaled_one_by_one(masked: bool) -> None:
    """A mask may leave out an infinite one."""
    found = []
    for with_guard in (False, True):
        model = linear()
        scaler, (optimizer,) = scaler_for(with_guard, model)
        losses = model(HEALTHY).flatten()
        if masked:
            losses = torch.cat([losses, torch.full((1,), torch.inf)])
        scaled = scaler.scale(losses)
        assert torch.equal(scaled, losses * INIT_SCALE)
        scaled[:2].mean().backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(moved(model))
    assert torch.equal(*found)
    assert found[1].abs().max() > 0.5


def test_parameters_without_a_module_are_guarded() -> None:
    factors = [torch.randn(6, 2, requires_grad=True), torch.randn(2, 6, requires_grad=True)]
    optimizer = SGD(factors, lr=0.1)
    scaler = GuardScaler(HostedGuard(nn.ModuleList(), optimizer, CONFIG))
    before = factors[0].detach().clone()
    scaler.scale((factors[0] @ factors[1]).pow(2).mean()).backward()
    scaler.step(optimizer)
    assert not torch.equal(before, factors[0])


@pytest.mark.parametrize("held", [True, False])
def test_a_schedule_that_runs_ahead_of_skipped_steps_is_told(tmp_path: Path, held: bool) -> None:
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    config = {"precision": "fp16-mixed", "scale": {"init": 2.0**50}}
    guard = HostedGuard(model, optimizer, config, run_dir=tmp_path)
    scaler = GuardScaler(guard)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 60)
    for _ in range(50):
        guard.begin(HEALTHY)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, HEALTHY)).backward()
        scaler.step(optimizer)
        scaler.update()
        if not held or (guard.last is not None and guard.last.applied):
            with warnings.catch_warnings():  # torch tells of the very fault, in other words
                warnings.simplefilter("ignore", UserWarning)
                scheduler.step()
    guard.close()
    rows = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, HealthRow)]
    assert [row.warning for row in rows] == ([] if held else [HealthWarning.SCHEDULE_AHEAD])
