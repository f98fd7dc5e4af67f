"""A guard inside a framework: healthy runs are the framework's own, bad steps leave no trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfguard.errors import HalfguardError, UsageError
from halfguard.guard.guard_scaler import GuardScaler
from halfguard.guard.hosted import HostedGuard
from halfguard.records import Action, Cause
from tests.support.hosts import INIT_SCALE, Host, guarded_host, stock_host
from tests.support.models import OPTIMIZERS, Batch, batches, differences, make
from tests.support.pairs import parametrize_pairs

pytestmark = pytest.mark.usefixtures("seed")

Seed = Callable[[int], None]
RETRY = {"skip": {"on_nonfinite": "retry_fp32"}}


def nan_batch(batch: Batch) -> Batch:
    inputs, labels = batch
    return torch.full_like(inputs, torch.nan), labels


def overflowing(batch: Batch) -> Batch:
    """A batch that is finite in FP32 and overflows in half."""
    inputs, labels = batch
    return inputs * 1e6, labels


def train(host: Host, data: list[Batch], seed: Seed) -> Host:
    seed(3)
    host.fit(data)
    return host


@parametrize_pairs(optimizer=OPTIMIZERS, max_norm=[None, 0.5], accumulate=[1, 4])
def test_a_healthy_run_is_bitwise_the_frameworks_own(
    optimizer: str, max_norm: float | None, accumulate: int, seed: Seed
) -> None:
    how: dict[str, Any] = {"optimizer": optimizer, "max_norm": max_norm, "accumulate": accumulate}
    data = batches(40)
    stock = train(stock_host(**how), data, seed)
    guarded = train(guarded_host(config=RETRY | {"recovery": {"every": 5}}, **how), data, seed)

    assert guarded.dtypes == stock.dtypes == {torch.float16}
    assert not differences(stock.state(), guarded.state())
    assert guarded.losses == stock.losses
    assert guarded.guard.state_dict().items() >= stock.scaler.state_dict().items()
    assert guarded.guard.summary().applied == len(data) // accumulate


@parametrize_pairs(
    optimizer=["adamw-foreach", "adamw-fused"], max_norm=[None, 0.5], accumulate=[1, 4]
)
def test_if_every_step_is_retried_the_run_is_bitwise_the_fp32_run(
    optimizer: str, max_norm: float | None, accumulate: int, seed: Seed
) -> None:
    how: dict[str, Any] = {"optimizer": optimizer, "max_norm": max_norm, "accumulate": accumulate}
    data = [overflowing(batch) for batch in batches(16)]
    fp32 = train(stock_host(fp32=True, **how), data, seed)
    guarded = train(guarded_host(config=RETRY, **how), data, seed)

    assert torch.float16 in guarded.dtypes
    assert guarded.guard.summary().retried == len(data) // accumulate
    assert not differences(fp32.state(), guarded.state())


@parametrize_pairs(optimizer=["sgd", "adamw-fused"], how=["skip", "retry_fp32"], accumulate=[1, 4])
def test_one_nan_batch_leaves_the_run_without_it(
    optimizer: str, how: str, accumulate: int, seed: Seed
) -> None:
    windows = [batches(accumulate, seed=number) for number in range(8)]
    data = [batch for window in windows for batch in window]
    bad = [*windows[3][:-1], nan_batch(windows[3][-1])]
    # No dropout: the step that is left out draws random numbers, and the run without it does not.
    given: dict[str, Any] = {"optimizer": optimizer, "model": "convnet", "max_norm": 0.5}
    given["accumulate"] = accumulate
    stock = stock_host(**given)
    guarded = guarded_host(**given, config={"skip": {"on_nonfinite": how}})
    train(stock, data, seed)
    train(guarded, [*data[: 3 * accumulate], *bad, *data[3 * accumulate :]], seed)

    assert not differences(stock.state(), guarded.state())
    assert guarded.guard.scaler.get_scale() == INIT_SCALE
    assert guarded.guard.summary().skipped == {Cause.BAD_BATCH: 1}


def test_a_refused_fused_optimizer_is_not_even_called(seed: Seed) -> None:
    host = guarded_host(optimizer="adamw-fused")
    calls = []
    host.optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    good = batches(2)
    train(host, [nan_batch(good[0]), good[1]], seed)
    assert calls == ["step"]
    assert host.guard.last.applied


def test_the_outcome_names_the_bad_batch(tmp_path: Any, seed: Seed) -> None:
    host = guarded_host(run_dir=tmp_path)
    train(host, [nan_batch(batches(1)[0])], seed)
    assert host.guard.last.cause is Cause.BAD_BATCH
    host.guard.close()
    assert "a batch" in (tmp_path / "steps.jsonl").read_text()
    assert len(list((tmp_path / "incidents").iterdir())) == 1


def test_gradients_stay_for_the_host_to_look_at_and_to_clear() -> None:
    host = guarded_host()
    host._forward_backward(batches(1)[0])
    host.scaler.step(host.optimizer)
    assert all(p.grad is not None for p in host.model.parameters())


# -- several optimizers


class Two:
    """A generator and a discriminator behind one BatchNorm, each with an optimizer of its own."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        torch.manual_seed(0)
        parts = {"norm": nn.BatchNorm1d(4), "first": nn.Linear(4, 4), "second": nn.Linear(4, 1)}
        self.model = nn.ModuleDict(parts)
        self.first = SGD(self.model["first"].parameters(), lr=0.1)
        self.second = SGD(self.model["second"].parameters(), lr=0.1)
        settings = {"scale": {"init": 8.0, "growth_interval": 100}} | (config or {})
        self.guard = HostedGuard(self.model, [self.first, self.second], settings)
        self.scaler = GuardScaler(self.guard)

    def losses(self, x: torch.Tensor, factor: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.float16):
            hidden = self.model["first"](self.model["norm"](x))
            out = self.model["second"](hidden.detach())
        return hidden.float().square().mean() * factor, out.float().square().mean()

    def zero_grad(self) -> None:
        self.model.zero_grad()


def test_the_second_optimizers_gradients_are_right_after_the_first_overflowed() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    two = Two()
    two.guard.begin(x)
    first, second = two.losses(x)
    two.scaler.scale(first).backward()
    two.scaler.scale(second).backward()
    next(iter(two.model["first"].parameters())).grad.fill_(torch.inf)
    two.scaler.step(two.first)
    assert two.guard.last.cause is Cause.GRADIENT_OVERFLOW
    two.scaler.update()
    two.scaler.step(two.second)
    scaled = [p.grad.clone() for p in two.model["second"].parameters()]

    fresh = Two()
    fresh.guard.begin(x)
    fresh.losses(x)[1].backward()
    expected = [p.grad for p in fresh.model["second"].parameters()]
    for got, want in zip(scaled, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-6)
    assert two.guard.last.applied
    two.guard.begin(x)  # the next window: now the scale falls, once
    assert two.scaler.get_scale() == 4.0


def test_a_nan_batch_poisons_no_buffer_in_any_turn() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    two = Two()
    before = {name: buffer.clone() for name, buffer in two.model.named_buffers()}
    two.guard.begin(x * torch.nan)
    for index, optimizer in enumerate((two.first, two.second)):
        two.zero_grad()
        loss = two.losses(x * torch.nan)[index]  # a forward pass of its own for each
        two.scaler.scale(loss).backward()
        two.scaler.step(optimizer)
        assert not two.guard.last.applied
    assert not differences(before, dict(two.model.named_buffers()))


def test_a_scale_that_falls_between_windows_falls_once_per_window() -> None:
    x = torch.randn(8, 4)
    two = Two()
    for _ in range(2):
        for index, optimizer in enumerate((two.first, two.second)):
            two.zero_grad()
            two.guard.begin(x)
            two.scaler.scale(two.losses(x)[index]).backward()
            next(p for g in optimizer.param_groups for p in g["params"]).grad.fill_(torch.inf)
            two.scaler.step(optimizer)
            two.scaler.update()
    two.guard.begin(x)
    assert two.scaler.get_scale() == 0.5  # after 8, 4, 2, 1


def test_an_optimizer_that_was_only_unscaled_does_not_stand_in_the_way() -> None:
    x = torch.randn(8, 4)
    two = Two()
    for _ in range(3):  # accelerate's clip_grad_norm_ unscales all optimizers
        for index, optimizer in enumerate((two.first, two.second)):
            two.guard.begin(x)
            for loss in two.losses(x):
                two.scaler.scale(loss).backward()
            two.scaler.unscale_(two.first)
            two.scaler.unscale_(two.second)
            two.scaler.step(optimizer)
            two.scaler.update()
            two.zero_grad()
            assert two.guard.last.applied, index
    assert two.guard.summary().applied == 6


def test_several_optimizers_skip_where_one_would_retry(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.full((8, 4), torch.nan)
    two = Two(RETRY)
    for _ in range(2):
        two.zero_grad()
        two.guard.begin(x, repeat=lambda x: two.losses(x)[0])
        two.scaler.scale(two.losses(x)[0]).backward()
        two.scaler.step(two.first)
    assert two.guard.last.action is Action.SKIP
    assert caplog.text.count("not repeated in FP32 but skipped") == 1


# -- optimizers that are created after the guard


def step_of(two: Two, optimizer: torch.optim.Optimizer, index: int, x: torch.Tensor) -> None:
    two.zero_grad()
    two.guard.begin(x)
    two.scaler.scale(two.losses(x)[index]).backward()
    two.scaler.unscale_(optimizer)
    two.scaler.step(optimizer)
    two.scaler.update()


def test_an_optimizer_of_other_parameters_is_adopted_beside_the_first() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    both, late = Two(), Two()
    late.guard = HostedGuard(late.model, late.first, late.guard.config)
    late.scaler.bind(late.guard)
    for two in (both, late):
        for batch in (x, x * torch.nan, x):
            for index, optimizer in enumerate((two.first, two.second)):
                step_of(two, optimizer, index, batch)
    assert late.guard.optimizers == [late.first, late.second]
    assert not differences(both.model.state_dict(), late.model.state_dict())
    assert late.guard.summary() == both.guard.summary()


def test_an_optimizer_of_the_same_parameters_replaces_the_first() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    two = Two()
    for rate in (0.1, 0.01, 0.001):
        two.first = SGD(two.model["first"].parameters(), lr=rate, momentum=0.9)
        for batch in (x, x * torch.nan, x):
            weight = two.model["first"].get_parameter("weight")
            before = weight.detach().clone()
            step_of(two, two.first, 0, batch)
            changed = not torch.equal(before, weight)
            assert two.guard.last.applied == changed == (batch is x)
        assert two.guard.optimizers == [two.second, two.first]


def test_an_adopted_optimizer_can_be_repeated_in_fp32() -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    guard = HostedGuard(model, SGD(model.parameters(), lr=0.1), RETRY)
    scaler, late = GuardScaler(guard), SGD(model.parameters(), lr=0.1)
    for scale in (1.0, 1e6):
        guard.begin(x * scale, repeat=lambda x: model(x).square().mean() * 1e-9)
        with torch.autocast("cpu", torch.float16):
            loss = model(x * scale).float().square().mean() * 1e-9
        scaler.scale(loss).backward()
        scaler.step(late)
        late.zero_grad()
    assert guard.last.action is Action.RETRY
    assert guard.last.applied


def test_parameters_outside_the_model_are_guarded_and_noted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    two, other = Two(), nn.Linear(4, 1)
    optimizer = SGD(other.parameters(), lr=0.1)
    before = other.weight.detach().clone()
    for batch, applied in ((x * torch.nan, False), (x, True)):
        optimizer.zero_grad()
        two.guard.begin(batch)
        two.scaler.scale(other(batch).square().mean()).backward()
        two.scaler.step(optimizer)
        assert two.guard.last.applied == applied == (not torch.equal(before, other.weight))
    assert caplog.text.count("2 of its 2 parameters are not in the guard's model") == 1


def test_with_snapshots_an_optimizer_is_not_adopted() -> None:
    x = torch.randn(8, 4)
    two = Two({"recovery": {}})
    late = SGD(two.model["first"].parameters(), lr=0.1)
    with pytest.raises(UsageError, match="snapshots do not contain its state"):
        step_of(two, late, 0, x)


# -- what hosts do with a step


@pytest.mark.parametrize("how", ["abandoned", "unscaled", "begun"])
def test_a_step_that_the_host_leaves_out_leaves_no_trace(how: str, seed: Seed) -> None:
    data = batches(6)
    stock, guarded = stock_host(model="convnet"), guarded_host(model="convnet")
    train(stock, data, seed)
    guarded.fit(data[:3])
    if how == "begun":
        guarded.guard.begin(data[0])
        guarded.loss(nan_batch(data[0]))
    else:
        guarded._forward_backward(nan_batch(data[0]))
        guarded.guard.abandon() if how == "abandoned" else guarded.guard.unscale(guarded.optimizer)
        guarded.optimizer.zero_grad()
    guarded.fit(data[3:])
    assert not differences(stock.state(), guarded.state())


def test_an_error_in_the_optimizer_is_reported_as_half_applied() -> None:
    host = guarded_host()
    host._forward_backward(batches(1)[0])

    def fail(*_: Any) -> None:
        raise RuntimeError("full")

    host.optimizer.register_step_post_hook(fail)
    with pytest.raises(RuntimeError, match="full") as caught:
        host.guard.apply(host.optimizer)
    assert "partly applied" in "".join(caught.value.__notes__)
    with pytest.raises(UsageError, match="partly applied"):
        host.guard.begin()


def test_a_run_that_cannot_go_on_halts(seed: Seed) -> None:
    host = guarded_host(config={"skip": {"max_consecutive": 3}})
    with pytest.raises(HalfguardError, match="bad_batch"):
        train(host, [nan_batch(batch) for batch in batches(5)], seed)


def test_a_batch_that_its_host_empties_is_repeated_as_it_was_given() -> None:
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=1e-12)
    guard = HostedGuard(model, optimizer, RETRY)

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch.pop("labels")
        return nn.functional.mse_loss(model(batch["x"]).float(), labels)

    batch = {"x": torch.ones(2, 4) * 1e6, "labels": torch.zeros(2, 1)}
    guard.begin(batch, repeat=loss)
    with torch.autocast("cpu", torch.float16):
        value = loss(batch)
    guard.scale(value).backward()
    assert guard.apply(optimizer).action is Action.RETRY


# -- rollback


def test_a_rollback_cuts_the_rate_of_a_scheduler_that_the_host_steps(seed: Seed) -> None:
    recovery = {"every": 2}
    config = {"skip": {"max_consecutive": 2}, "recovery": recovery}
    host = guarded_host(optimizer="sgd", config=config)
    data = batches(12)
    seed(3)
    host.fit(data[:6])
    host.fit([nan_batch(batch) for batch in data[:2]])
    assert host.guard.last.action is Action.ROLL_BACK
    planned = host.optimizer.param_groups[0]["lr"]
    assert planned == host.scheduler.get_last_lr()[0]
    seen = []
    host.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    host.fit(data[6:9])
    assert seen == [pytest.approx(planned * 0.5 * 0.97**step) for step in range(3)]
    assert host.optimizer.param_groups[0]["lr"] == pytest.approx(planned * 0.97**3)


def test_fp32_as_a_remedy_reaches_an_autocast_inside_forward(seed: Seed) -> None:
    model = make("convnet")
    model.forward = torch.autocast("cpu", torch.float16)(model.forward)  # type: ignore[method-assign]
    optimizer = SGD(model.parameters(), lr=1e-9)
    dtypes = []
    model.get_submodule("head").register_forward_hook(lambda m, i, out: dtypes.append(out.dtype))
    recovery = {"every": 1, "max_rollbacks": 0, "ladder": ["fp32"]}
    guard = HostedGuard(model, optimizer, {"skip": {"max_consecutive": 1}, "recovery": recovery})

    def step(batch: Batch) -> bool:
        guard.begin(batch)
        loss = nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
        guard.scale(loss).backward()
        applied = guard.apply(optimizer).applied
        model.zero_grad()
        return applied

    good = batches(3)
    steps = [good[0], good[1], nan_batch(good[1]), overflowing(good[2])]
    assert [step(batch) for batch in steps] == [True, True, False, True]
    assert dtypes == [torch.float16, torch.float16, torch.float16, torch.float32]


# -- the facade, and state


@patch.multiple("halfguard.guard.spikes", WINDOW=4, WARM_UP=2)
def test_a_stopped_run_resumes_bitwise(seed: Seed) -> None:
    data = batches(12)
    config = RETRY | {"recovery": {"every": 3}, "spike": {}}
    whole = train(guarded_host(config=config, accumulate=2), data, seed)

    first = train(guarded_host(config=config, accumulate=2), data[:6], seed)
    saved: dict[str, Any] = first.state() | {
        "scaler": first.scaler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    second = guarded_host(config=config, accumulate=2)
    second.model.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    second.scheduler.load_state_dict(saved["scheduler"])
    second.scaler.load_state_dict(saved["scaler"])
    torch.set_rng_state(saved["rng"])
    second.fit(data[6:])

    assert not differences(whole.state(), second.state())
    assert not differences(whole.scaler.state_dict(), second.scaler.state_dict())


def test_a_state_can_be_taken_while_a_window_is_open() -> None:
    host = guarded_host(accumulate=4)
    host._forward_backward(batches(1)[0])
    assert host.guard.state_dict()["halfguard"]["counters"]["batch"] == 1


def test_the_state_of_torchs_scaler_is_taken_over_and_handed_back() -> None:
    stock = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=7)
    stock.scale(torch.ones(()))  # makes it start
    facade = GuardScaler()
    facade.load_state_dict(stock.state_dict())  # before there is a guard
    assert facade.get_scale() == 512.0
    assert facade.state_dict() == stock.state_dict()

    host = guarded_host()
    facade.bind(host.guard)
    assert (facade.get_scale(), facade.get_growth_interval()) == (512.0, 7)

    again = torch.amp.GradScaler("cpu")
    again.load_state_dict(facade.state_dict())
    assert again.state_dict() == stock.state_dict()


def test_a_saved_state_has_only_what_weights_only_loads(tmp_path: Any, seed: Seed) -> None:
    host = guarded_host(config=RETRY | {"recovery": {}, "spike": {}})
    train(host, batches(3), seed)
    torch.save(host.guard.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    host.guard.load_state_dict(loaded)


def test_the_facade_is_a_grad_scaler() -> None:
    host = guarded_host()
    assert isinstance(host.scaler, torch.amp.GradScaler)
    assert isinstance(host.scaler, GuardScaler)
    assert host.scaler.is_enabled()
    host.scaler.set_growth_interval(5)
    host.scaler.set_growth_factor(4.0)
    host.scaler.set_backoff_factor(0.25)
    assert host.guard.scaler.get_growth_interval() == host.scaler.get_growth_interval() == 5
    assert (host.scaler.get_growth_factor(), host.scaler.get_backoff_factor()) == (4.0, 0.25)
    host.scaler.scale(host.loss(batches(1)[0]))
    host.guard.abandon()
    host.scaler.update(64.0)
    assert host.scaler.get_scale() == 64.0


def test_a_copy_has_the_state_and_waits_for_a_guard_of_its_own() -> None:
    host = guarded_host()
    host.fit(batches(2))
    for scaler in (GuardScaler(), GuardScaler(host.guard)):
        copied = copy.deepcopy(scaler)
        assert copied.guard is None
        assert copied.state_dict() == scaler.state_dict()
        assert not hasattr(copied, "_growth_interval")


def test_mistakes_are_named() -> None:
    host = guarded_host()
    with pytest.raises(UsageError, match="no guard yet"):
        GuardScaler().scale(torch.ones(()))
    with pytest.raises(UsageError, match="This SGD was not passed"):
        host.guard.apply(SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    with pytest.raises(UsageError, match=r"without a call of scale\(loss\)"):
        host.guard.apply(host.optimizer)
    host._forward_backward(batches(1)[0])
    host.guard.unscale(host.optimizer)
    with pytest.raises(UsageError, match="already been called"):
        host.guard.unscale(host.optimizer)
    with pytest.raises(UsageError, match="neither a closure"):
        GuardScaler(host.guard).step(host.optimizer, lambda: None)
    for call in (host.guard.step, host.guard.backward, host.guard.update, host.guard.resume):
        with pytest.raises(UsageError, match="hosted by a framework"):
            call()


def test_a_loop_that_holds_its_scheduler_if_the_scale_fell_across_update() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = GuardScaler(HostedGuard(model, optimizer, {"scale": {"init": 2.0**22}}))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    applied = advanced = 0
    for _ in range(12):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(2, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        applied += scaler.guard.last.applied
        before = scaler.get_scale()
        scaler.update()
        if before <= scaler.get_scale():
            scheduler.step()
            advanced += 1
        optimizer.zero_grad()
    assert 0 < applied < 12
    assert advanced == applied
