"""Loops as people write them: what a bad batch did to the model must never stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.guard import Guard
from halfguard.replaying.autopsy import replay
from halfguard.workload import Workload
from tests.guard.helper import Recorder
from tests.support.cases import each
from tests.support.pairs import parametrize_pairs

pytestmark = pytest.mark.usefixtures("seed")

SMALL: dict[str, Any] = {"scale": {"init": 8.0}}
BAD = torch.full((8, 4), torch.nan)


def squared(y: Tensor) -> Tensor:
    return y.float().square().mean()


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return squared(model(x))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def make(config: dict[str, Any] = SMALL, **more: Any) -> tuple[nn.Sequential, Guard]:
    model = network()
    fused = more.pop("fused", False)
    return model, Guard(model, SGD(model.parameters(), lr=0.1, fused=fused), config, **more)


def loop_of(
    guard: Guard, model: nn.Module, context: str, *, check: bool
) -> Callable[[Tensor], Any]:
    """Return a step with an autocast context of some kind, and perhaps a check of one's own."""
    once = guard.autocast() if context == "made once" else None

    def step(x: Tensor) -> object:
        with once or (
            torch.autocast("cpu", torch.float16) if context == "own" else guard.autocast()
        ):
            loss = loss_fn(model, x)
        if check and not loss.isfinite():
            return None
        guard.backward(loss, batch=x)
        return guard.update()

    return step


LOOPS = [("made once", False), ("own", False), ("guard's", True)]


def train(loop: tuple[str, bool], batches: list[Tensor], *, fused: bool) -> dict[str, Tensor]:
    model, guard = make(fused=fused)
    step = loop_of(guard, model, loop[0], check=loop[1])
    for x in batches:
        step(x)
    return model.state_dict()


@parametrize_pairs(loop=LOOPS, at=[0, 3], fused=[False, True])
def test_a_bad_batch_leaves_no_trace(loop: Any, at: int, fused: bool) -> None:
    good = [torch.randn(8, 4) for _ in range(6)]
    seen = train(loop, [*good[:at], BAD, *good[at:]], fused=fused)
    never = train(loop, good, fused=fused)
    assert all(torch.equal(seen[name], never[name]) for name in never)


@pytest.mark.parametrize("fused", [False, True], ids=["host", "device"])
def test_two_checks_of_ones_own_at_once_leave_finite_statistics(fused: bool) -> None:
    """Nobody tells the guard of such a batch; the next step finds what it did."""
    good = [torch.randn(8, 4) for _ in range(6)]
    seen = train(("own", True), [*good[:3], BAD, *good[3:]], fused=fused)
    assert all(value.isfinite().all() for value in seen.values())


def test_weights_loaded_between_forward_passes() -> None:
    model, guard = make()
    checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
    checkpoint["1.running_mean"] += 5
    with guard.autocast():
        model(torch.randn(8, 4))  # a pass to see that the shapes fit
    model.load_state_dict(checkpoint)
    assert not guard.step(loss_fn, BAD).applied
    assert all(torch.equal(value, checkpoint[name]) for name, value in model.state_dict().items())


def test_two_forward_passes_before_one_backward_pass_are_one_step() -> None:
    model, guard = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with guard.autocast():
        first = loss_fn(model, torch.randn(8, 4))
    with guard.autocast():
        second = loss_fn(model, BAD)
    guard.backward(first + second)
    assert not guard.update().applied
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@each("fused", [False, True])
@each("context", ["guard", "own"])
def test_two_heads_of_one_trunk_are_updated_one_after_the_other(fused: bool, context: str) -> None:
    """The second backward pass uses the first one's graph, which has saved BatchNorm's statistics."""

    def train(*, guarded: bool) -> tuple[dict[str, Tensor], list[bool]]:
        torch.manual_seed(0)
        model = nn.ModuleList([network()[:2], nn.Linear(4, 1), nn.Linear(4, 1)])
        trunk, *heads = model
        of_heads = [SGD(heads[0].parameters(), lr=0.1, fused=fused)]
        of_heads += [SGD([*heads[1].parameters(), *trunk.parameters()], lr=0.1, fused=fused)]
        guard, applied = Guard(model, of_heads, SMALL), []
        for index in range(6):
            x = torch.randn(8, 4)
            if not guarded and index == 3:
                continue
            own = torch.autocast("cpu", torch.float16)
            with guard.autocast() if guarded and context == "guard" else own:
                hidden = trunk(x)
                losses = [squared(head(hidden)) for head in heads]
            losses[0] = losses[0] * (torch.inf if index == 3 else 1)
            losses[1] = losses[1] * (torch.inf if index == 3 else 1)
            for loss, optimizer in zip(losses, of_heads, strict=True):
                if guarded:
                    guard.backward(loss, retain_graph=loss is losses[0])
                    applied.append(guard.update(optimizer).applied)
                else:
                    (loss * 8).backward(retain_graph=loss is losses[0])  # type: ignore[no-untyped-call]
                    for p in model.parameters():
                        p.grad = None if p.grad is None else p.grad / 8
                    optimizer.step()
                    model.zero_grad()
        return model.state_dict(), applied

    found, applied = train(guarded=True)
    assert applied == [index // 2 != 3 for index in range(12)]
    torch.testing.assert_close(found, train(guarded=False)[0], rtol=0, atol=0)


def test_the_context_is_a_decorator_too() -> None:
    model, guard = make()

    @guard.autocast()
    def forward(x: Tensor) -> Tensor:
        assert torch.is_autocast_enabled("cpu")
        return loss_fn(model, x)

    for x in (torch.randn(8, 4), BAD, torch.randn(8, 4)):
        guard.backward(forward(x), batch=x)
        guard.update()
    assert model[1].num_batches_tracked == 2


def test_an_exception_in_a_forward_pass_of_ones_own_leaves_no_trace() -> None:
    model, guard = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def forward() -> None:
        with guard.autocast():
            model(BAD)
            raise ValueError("no such label")

    with pytest.raises(ValueError, match="no such label"):
        forward()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("fused", [False, True], ids=["host", "device"])
def test_a_padded_nan_sample_that_the_loss_leaves_out(
    fused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(
        nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten(), nn.Linear(12, 1)
    )
    guard = Guard(model, SGD(model.parameters(), lr=0.1, fused=fused), SMALL)
    x = torch.randn(4, 3, 4)
    x[3] = torch.nan

    def without_padding(model: Any, x: Tensor) -> Tensor:
        return model[2](model[1](model[0](x)[:3])).float().square().mean()

    assert all(guard.step(without_padding, x).applied for _ in range(4))
    guard.summary()
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    assert [r.getMessage().startswith("step 0: running statistics") for r in caplog.records] == [
        True
    ]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantization_observers_survive_a_bad_batch() -> None:
    quantization = pytest.importorskip("torch.ao.quantization.fake_quantize")

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.activations = quantization.default_fake_quant()
            self.weights = quantization.default_per_channel_weight_fake_quant()

        def forward(self, x: Tensor) -> Tensor:
            weight = self.weights(self.linear.weight)
            return self.activations(nn.functional.linear(x, weight).float())

    model = Quantized()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), SMALL)
    try:
        applied = guard.step(loss_fn, torch.full((2, 4), torch.inf)).applied
    except AssertionError as error:  # torch 2.9 raises by itself
        applied = "min nan should be less than max nan" not in str(error)
    assert not applied
    assert all(guard.step(loss_fn, torch.randn(2, 4)).applied for _ in range(3))


class Energy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        e = x * x
        return e / e.sum(-1, keepdim=True)


class RunningMean(nn.Module):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = (0.9 * self.mean + 0.1 * x.float().mean(0)).detach()
        return x - self.mean


def workload(dropout: float = 0.1) -> Workload:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.Dropout(dropout), Energy(), RunningMean(), nn.Linear(8, 2)]
    model = nn.Sequential(*layers)
    return Workload(model, loss_fn, [torch.randn(4, 8)], SGD(model.parameters(), lr=0.1))


def test_an_incident_holds_the_buffers_from_before_the_step(tmp_path: Path) -> None:
    job = workload()
    guard = Guard(job.model, job.optimizer, SMALL, run_dir=tmp_path)
    guard.step(loss_fn, torch.randn(4, 8))
    assert not guard.step(loss_fn, torch.randn(4, 8) * 2000).applied
    autopsy = replay(tmp_path / "incidents" / "000001-r0", workload())
    assert autopsy.culprit is not None
    assert "mul" in str(autopsy.culprit)
    assert autopsy.culprit.module == "2"


def test_two_steps_of_nothing_but_nan_are_not_called_bitwise_equal(tmp_path: Path) -> None:
    job = workload(0.9)
    guard = Guard(job.model, job.optimizer, SMALL, run_dir=tmp_path)
    assert not guard.step(loss_fn, torch.randn(4, 8) * 2000).applied
    autopsy = replay(tmp_path / "incidents" / "000000-r0", workload(0.1))
    assert autopsy.reproduced == "same fault"


RETRY: dict[str, Any] = {**SMALL, "skip": {"on_nonfinite": "retry_fp32"}}


def retried(loss: Any) -> list[Tensor]:
    model, guard = make(RETRY)
    assert guard.step(loss, torch.ones(8, 4)).applied
    return list(model.parameters())


def in_fp32_only(y: Tensor) -> Tensor:
    """Return a loss that is infinite if it was computed in half."""
    return squared(y) + (torch.inf if y.dtype == torch.float16 else 0.0)


def overflowing(model: nn.Module, x: Tensor) -> Tensor:
    return in_fp32_only(model(x))


def test_a_loss_function_that_runs_backward_itself_is_refused() -> None:
    model, guard = make(RETRY)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        loss_fn(model, x).backward()  # type: ignore[no-untyped-call]
        return loss_fn(model, x)

    with pytest.raises(UsageError, match="loss_fn called backward"):
        guard.step(loss, torch.ones(8, 4))
    assert all(p.grad is None for p in model.parameters())
    assert guard.step(loss_fn, torch.ones(8, 4)).applied


def test_a_hook_that_reads_the_scale_in_a_repeat_reads_one() -> None:
    model, guard = make(RETRY)
    scales = Recorder()
    next(model.parameters()).register_hook(lambda _: scales.append(guard.scaler.get_scale()))
    before = guard.scaler.get_scale()
    assert guard.step(overflowing, torch.ones(8, 4)).action == "retry_fp32"
    first, *again = scales.take()
    assert first == before
    assert again == [before, before, 1.0], "two passes as it was, and the repeat"
    assert guard.scaler.get_scale() == before


def test_a_repeat_is_in_fp32_although_the_loss_function_has_its_own_autocast() -> None:
    dtypes = Recorder()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            y = model(x)
        dtypes.append(y.dtype)
        return in_fp32_only(y)

    retried(loss)
    assert dtypes.take()[0::3] == [torch.float16, torch.float32], "two passes are between"
    with torch.autocast("cpu", torch.float16):
        assert torch.is_autocast_enabled("cpu"), "autocast works again"


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused_at_the_first_step() -> None:
    model = nn.Linear(4, 1)
    inner = SGD(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: inner.step())
    guard = Guard(model, SGD(model.parameters(), lr=0.1), SMALL)
    with pytest.raises(UsageError, match="backward pass changed the weights"):
        guard.step(loss_fn, torch.randn(2, 4))
    with pytest.raises(UsageError, match="partly applied"):
        guard.step(loss_fn, torch.randn(2, 4))


def test_fp32_as_a_remedy_over_a_frozen_half_base() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4).half(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    recovery = {"every": 2, "max_rollbacks": 0, "ladder": ["fp32"]}
    config = {**SMALL, "skip": {"max_consecutive": 1}, "recovery": recovery}
    guard = Guard(model, SGD(model[1].parameters(), lr=0.01), config)
    dtypes = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x)
        dtypes.append(y.dtype)
        return squared(y)

    for _ in range(4):
        assert guard.step(loss, torch.randn(2, 4)).applied
    assert guard.step(loss, torch.full((2, 4), torch.nan)).action == "roll_back"
    assert guard.config.precision == "fp32"
    assert guard.step(loss, torch.randn(2, 4)).applied
    assert (dtypes[0], dtypes[-1]) == (torch.float16, torch.float32)


def critic_and_generator(lr: float, **scale: Any) -> tuple[nn.Linear, nn.Linear, list[SGD], Guard]:
    critic, generator = nn.Linear(4, 1), nn.Linear(4, 1)
    nets = nn.ModuleDict({"critic": critic, "generator": generator})
    optimizers = [SGD(net.parameters(), lr=lr) for net in (critic, generator)]
    return (
        critic,
        generator,
        optimizers,
        Guard(nets, optimizers, {"scale": {"init": 1024.0, **scale}}),
    )


@pytest.mark.parametrize("change", ["growth", "back-off"])
def test_a_critic_that_steps_twice_is_unscaled_by_the_scale_it_was_scaled_by(change: str) -> None:
    interval = 1 if change == "growth" else 1000
    critic, generator, optimizers, guard = critic_and_generator(0.0, growth_interval=interval)
    x, norms = torch.randn(8, 4), []
    for step in range(3):
        with guard.autocast():
            loss = critic(x).float().square().mean()
        big = change == "back-off" and step == 0
        guard.backward(loss * 1e6 if big else loss)
        norms.append(guard.update(optimizers[0]).grad_norm)
    assert guard.scaler.get_scale() == (4096.0 if change == "growth" else 512.0)
    assert norms[1] == norms[2]
    guard.backward(generator(x).square().mean())
    guard.update(optimizers[1])
    true = torch.autograd.grad(squared(critic(x)), [*critic.parameters()])
    assert norms[1] == pytest.approx(nn.utils.get_total_norm(true).item(), rel=1e-2)


def test_a_bad_loss_of_a_second_critic_step_does_not_lower_the_scale() -> None:
    critic, _, optimizers, guard = critic_and_generator(0.1)
    for x in (torch.randn(8, 4), torch.full((8, 4), torch.nan), torch.randn(8, 4)):
        with guard.autocast():
            loss = squared(critic(x))
        guard.backward(loss, batch=x)
        guard.update(optimizers[0])
    assert guard.scaler.get_scale() == 1024.0


def test_a_forward_pass_that_writes_its_own_weight_is_no_step_in_the_backward_pass() -> None:
    class Normalized(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.copy_(nn.functional.normalize(self.weight))
            return super().forward(x)

    model = nn.Sequential(Normalized(4, 4), nn.Linear(4, 1))
    guard = Guard(model, SGD(model.parameters(), lr=0.1), {"precision": "bf16-mixed"})
    assert all(guard.step(loss_fn, torch.randn(8, 4)).applied for _ in range(3))


def test_an_infinite_parameter_that_nothing_uses_is_no_bad_weight() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.unused = nn.Parameter(torch.full((2,), -torch.inf))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    model = Unused()
    guard = Guard(model, SGD(model.parameters(), lr=0.0), {"skip": {"max_consecutive": 8}})
    x = torch.randn(8, 4)
    causes = [
        guard.step(lambda m, x: (m(x) * 40).float().square().sum(), x).cause for _ in range(20)
    ]
    assert causes[0] == "gradient_overflow"
    assert causes[-1] is None


def test_a_lower_floor_by_reconfigure_lets_the_scale_fall() -> None:
    model = nn.Linear(4, 1)
    config: dict[str, Any] = {"scale": {"init": 1024.0, "floor": 1024.0}}
    guard = Guard(model, SGD(model.parameters(), lr=1e-4), config)
    x = torch.randn(8, 4)

    def large(model: nn.Module, x: Tensor) -> Tensor:
        return squared(model(x)) * 1e3

    assert not guard.step(large, x).applied
    guard.reconfigure(GuardConfig.load({"scale": {"init": 1024.0, "floor": 1.0}}))
    assert any(guard.step(large, x).applied for _ in range(10))
    assert guard.scaler.get_scale() < 1024.0


class Recurrent(nn.Module):
    h: Any

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.h, self.given = nn.Linear(4, 4), None, Recorder()

    def forward(self, x: Tensor) -> Tensor:
        self.given.append(self.h)
        y: Tensor = self.cell(x if self.h is None else x + self.h.to(x.dtype))
        self.h = y.detach()
        return y


def test_a_hidden_state_that_an_epoch_sets_to_none_is_none_in_the_repeat() -> None:
    model = Recurrent()
    guard = Guard(model, SGD(model.parameters(), lr=1e-3), RETRY)
    for _ in range(5):
        guard.step(loss_fn, torch.randn(8, 4))
    model.h = None
    model.given.take()

    assert guard.step(overflowing, torch.randn(8, 4)).action == "retry_fp32"
    assert model.given.take() == [None] * 4


def test_a_repeat_recomputes_checkpointed_parts_in_fp32() -> None:
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def inner(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                out: Tensor = self.linear(x)
            return out

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model = Block()
    guard = Guard(model, SGD(model.parameters(), lr=1e-3), RETRY)

    assert guard.step(overflowing, torch.randn(8, 4)).action == "retry_fp32"


def test_statistics_are_repaired_beside_a_buffer_that_cannot_be_written() -> None:
    model = network()
    model.register_buffer("expanded", torch.zeros(1).expand(4))
    guard = Guard(model, SGD(model.parameters(), lr=0.1), SMALL)
    guard._stepper.buffers.track(model._buffers, "expanded")
    x = torch.randn(8, 4)
    x[0] = torch.nan

    def without_first(model: Any, x: Tensor) -> Tensor:
        return squared(model[2](model[1](model[0](x)).nan_to_num()))

    guard.step(without_first, x)
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def test_two_forward_passes_with_a_cache_that_grows() -> None:
    class Growing(nn.Module):
        cache: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 1)
            self.register_buffer("cache", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            self.cache = torch.zeros(len(self.cache) + 3)
            return self.out(self.norm(x))

    model = Growing()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), SMALL)
    guard._stepper.buffers.track(model._buffers, "cache")
    for _ in range(3):
        with guard.autocast():
            first = squared(model(torch.randn(8, 4)))
        with guard.autocast():
            second = squared(model(torch.randn(8, 4)))
        guard.backward(first + second)
        assert guard.update().applied


def test_a_repeat_sees_the_batch_that_was_given_in_a_tuple() -> None:
    def popping(model: nn.Module, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
        return in_fp32_only(model(batch[0].pop("x")))

    _, guard = make(RETRY)
    batch = ({"x": torch.randn(8, 4)}, torch.zeros(8))
    assert guard.step(popping, batch).action == "retry_fp32"
