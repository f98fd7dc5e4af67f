"""What a host may do after the guard was made: other optimizers, other losses, steps that are left out."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from halfguard.errors import UsageError
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.journal import read_rows
from halfguard.records import HealthRow, HealthWarning

pytestmark = pytest.mark.usefixtures("seed")
BATCH = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
Scaler = GuardScaler | torch.amp.GradScaler


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def guarded(one: nn.Module, optimizer: Optimizer, **config: object) -> GuardScaler:
    return GuardScaler(HostedGuard(one, optimizer, {"precision": "fp16-mixed", **config}))


def train(one: nn.Module, optimizer: Optimizer, scaler: Scaler, steps: int = 8) -> None:
    for _ in range(steps):
        if isinstance(scaler, GuardScaler) and scaler.guard is not None:
            scaler.guard.begin(BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (one(BATCH).float() - BATCH.sum(1, keepdim=True)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(one.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def weights(one: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in one.parameters()])


def test_an_optimizer_that_is_made_later_is_refused() -> None:
    first, second = model(), model()
    scaler = guarded(first, SGD(first.parameters(), lr=0.1))
    scaler.scale(second(BATCH).mean()).backward()
    with pytest.raises(UsageError, match="does not have this SGD"):
        scaler.step(SGD(second.parameters(), lr=0.1))


def test_losses_of_single_samples_are_scaled_one_by_one() -> None:
    found = []
    for ours in (False, True):
        one = model()
        optimizer = SGD(one.parameters(), lr=0.1)
        scaler = guarded(one, optimizer) if ours else torch.amp.GradScaler("cpu")
        losses = one(BATCH).pow(2)
        scaled = scaler.scale(losses)
        assert torch.equal(scaled, losses * 65536.0)
        scaled.mean().backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(weights(one))
    assert torch.equal(*found)


def test_losses_that_a_mask_leaves_out_may_be_infinite() -> None:
    found = []
    for ours in (False, True):
        one = model()
        optimizer = SGD(one.parameters(), lr=0.1)
        scaler = guarded(one, optimizer) if ours else torch.amp.GradScaler("cpu")
        losses = one(BATCH).pow(2).flatten()
        masked = torch.cat([losses, torch.full((1,), torch.inf)])
        scaler.scale(masked)[:-1].mean().backward()
        scaler.step(optimizer)
        scaler.update()
        found.append(weights(one))
    assert torch.equal(*found)
    assert not torch.equal(found[1], weights(model()))


def test_a_step_that_was_left_out_and_zeroed_is_forgotten() -> None:
    one = model()
    optimizer = SGD(one.parameters(), lr=0.1)
    scaler = guarded(one, optimizer)
    for left_out in (True, False):
        assert scaler.guard is not None
        scaler.guard.begin(BATCH)
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(one(BATCH).mean()).backward()
        scaler.unscale_(optimizer)
        if not left_out:
            scaler.step(optimizer)
        scaler.update()
    assert scaler.guard is not None
    assert scaler.guard.last is not None
    assert scaler.guard.last.applied


def test_parameters_without_a_module_are_guarded() -> None:
    factors = [torch.randn(6, 2, requires_grad=True), torch.randn(2, 6, requires_grad=True)]
    optimizer = SGD(factors, lr=0.1)
    scaler = guarded(nn.ModuleList(), optimizer)
    before = factors[0].detach().clone()
    scaler.scale((factors[0] @ factors[1]).pow(2).mean()).backward()
    scaler.step(optimizer)
    assert not torch.equal(before, factors[0])


@pytest.mark.parametrize("held", [True, False])
def test_a_schedule_that_runs_ahead_of_skipped_steps_is_told(tmp_path: Path, held: bool) -> None:
    one = model()
    optimizer = SGD(one.parameters(), lr=0.1)
    config = {"precision": "fp16-mixed", "scale": {"init": 2.0**50, "ceiling": 2.0**50}}
    guard = HostedGuard(one, optimizer, config, run_dir=tmp_path)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, 60)
    for _ in range(50):
        train(one, optimizer, GuardScaler(guard), steps=1)
        if not held or (guard.last is not None and guard.last.applied):
            with warnings.catch_warnings():  # torch tells of the very fault, in other words
                warnings.simplefilter("ignore", UserWarning)
                scheduler.step()
    guard.close()
    rows = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, HealthRow)]
    assert [row.warning for row in rows] == ([] if held else [HealthWarning.SCHEDULE_AHEAD])
