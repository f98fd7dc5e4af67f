"""The law half == half(master), and every way in which gradients and weights come and go."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from halfguard.errors import UsageError
from halfguard.precision.master_weights import MasterWeights
from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision
from tests.support.cases import each
from tests.support.counting import OpCounter
from tests.support.devices import chosen_device, place

pytestmark = pytest.mark.usefixtures("device")

STEPS = 300  # of a regression on which half weights stall: updates are below half the spacing of weights
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda model: SGD(model.parameters(), lr=4e-4),
    "momentum": lambda model: SGD(model.parameters(), lr=4e-5, momentum=0.9),
    "adamw-foreach": lambda model: AdamW(model.parameters(), lr=1e-4, foreach=True),
    "adamw-fused": lambda model: AdamW(model.parameters(), lr=1e-4, fused=True),
}


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A layer of ones, made without touching the global generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias)  # type: ignore[no-untyped-call]
    for param in layer.parameters():
        nn.init.ones_(param)
    return place(layer)


def network(generator: torch.Generator) -> nn.Sequential:
    """Two layers whose weights have magnitudes between 0.5 and 1: spacing 2**-11 in half."""
    model = nn.Sequential(linear(16, 32), nn.Tanh(), linear(32, 4))
    with torch.no_grad():
        for param in model.parameters():
            magnitude = 0.5 + 0.5 * torch.rand(param.shape, generator=generator)
            sign = torch.randint(0, 2, param.shape, generator=generator) * 2 - 1
            param.copy_(magnitude * sign)
    return model


def task() -> tuple[nn.Module, Tensor, Tensor]:
    """The student, which is the teacher moved a little, with the inputs and the teacher's answers."""
    generator = torch.Generator().manual_seed(7)
    teacher = network(generator)
    x = torch.randn(64, 16, generator=generator)
    with torch.no_grad():
        y = teacher(x) + 0.05 * torch.randn(64, 4, generator=generator)
        for param in teacher.parameters():
            param.add_(0.05 * torch.randn(param.shape, generator=generator))
    return teacher, x, y


def train(
    precision: Precision, build: Callable[[nn.Module], Optimizer], *, masters: bool
) -> tuple[float, float]:
    """Return the loss before and after training, measured in FP32; the loss scale is 2**10."""
    model, x, y = task()
    before = _loss(model, x, y)
    model.to(torch.float16 if precision.needs_master_weights else torch.float32)
    optimizer = build(model)
    if masters:
        optimizer = MasterWeights(optimizer)
    scale = 1024.0 if precision.needs_loss_scale else 1.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        with autocast(precision, chosen_device().type):
            loss = nn.functional.mse_loss(model(x), y)
        torch.autograd.backward(loss * scale)
        unscale(optimizer, scale)
        optimizer.step()
    return before, _loss(model.float(), x, y)


@torch.no_grad()
def unscale(optimizer: Optimizer, scale: float) -> None:
    for group in optimizer.param_groups:
        torch._foreach_div_([p.grad for p in group["params"]], scale)


@torch.no_grad()
def _loss(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return nn.functional.mse_loss(model(x), y).item()


HALVES = (torch.float16, torch.bfloat16)
Seed = Callable[[int], None]


def model_and(name: str, dtype: torch.dtype = torch.float16) -> tuple[nn.Module, MasterWeights]:
    model = network(torch.Generator().manual_seed(3)).to(dtype)
    return model, MasterWeights(OPTIMIZERS[name](model))


def backward(model: nn.Module, step: int, scale: float = 1.0) -> None:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
    with torch.autocast(chosen_device().type, next(model.parameters()).dtype):
        loss = model(x).float().square().mean()
    torch.autograd.backward(loss * scale)


def assert_law(optimizer: MasterWeights) -> None:
    for half, master in optimizer.masters().items():
        assert master.dtype is torch.float32
        assert torch.equal(half, master.to(half.dtype))


finite = st.floats(-60000, 60000, width=16)


@pytest.mark.on_standin
@given(
    weights=st.lists(finite, min_size=1, max_size=8),
    gradients=st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=6),
    dtype=st.sampled_from(HALVES),
    lr=st.sampled_from([1e-6, 1e-3, 1.0]),
)
@settings(deadline=None, max_examples=100)
def test_a_half_weight_is_its_master_rounded(
    weights: list[float], gradients: list[float], dtype: torch.dtype, lr: float
) -> None:
    param = nn.Parameter(torch.tensor(weights).to(dtype))
    exact = param.detach().float()
    optimizer = MasterWeights(SGD([param], lr=lr))
    assert_law(optimizer)
    for gradient in gradients:
        param.grad = torch.full_like(param, gradient)
        exact = torch.add(exact, param.grad.float(), alpha=-lr)
        optimizer.step()
        optimizer.zero_grad()
        assert_law(optimizer)
        assert torch.equal(param, exact.to(dtype))


@each("name", OPTIMIZERS)
@each("dtype", HALVES)
def test_the_law_holds_with_torchs_own_scaler_through_overflows(
    name: str, dtype: torch.dtype
) -> None:
    model, optimizer = model_and(name, dtype)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5)
    assert optimizer.inner.param_groups[0]["lr"] == pytest.approx(optimizer.defaults["lr"] / 2)
    scaler = torch.amp.GradScaler(chosen_device().type, init_scale=2.0**10)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.ones(8, 16)
        with torch.autocast(chosen_device().type, dtype):
            loss = model(x).float().square().mean() * (torch.inf if step == 3 else 1.0)
        torch.autograd.backward(scaler.scale(loss))
        if step % 2:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(optimizer.master_parameters(), 1.0)
        before = [p.detach().clone() for p in [*model.parameters(), *optimizer.masters().values()]]
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        after = [*model.parameters(), *optimizer.masters().values()]
        unchanged = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        assert all(unchanged) if step == 3 else not any(unchanged[len(unchanged) // 2 :])
        assert_law(optimizer)
        assert not hasattr(optimizer.inner, "found_inf")
    assert scaler.get_scale() == 2.0**9


@each("name", OPTIMIZERS)
def test_torchs_scaler_gives_the_bits_of_scaling_by_hand(name: str) -> None:
    (by_hand, optimizer), (scaled, other) = model_and(name), model_and(name)
    scaler = torch.amp.GradScaler(chosen_device().type, init_scale=2.0**10)
    for step in range(5):
        backward(by_hand, step, scale=2.0**10)
        for master in optimizer.master_parameters():
            assert master.grad is not None
            master.grad /= 2.0**10
        optimizer.step()
        optimizer.zero_grad()
        backward(scaled, step, scale=scaler.scale(torch.ones(())).item())
        scaler.step(other)
        scaler.update()
        other.zero_grad()
    for a, b in zip(optimizer.master_parameters(), other.master_parameters(), strict=True):
        assert torch.equal(a, b)


def test_micro_batches_are_summed_in_fp32() -> None:
    param = nn.Parameter(torch.ones(1).half())
    optimizer = MasterWeights(SGD([param], lr=1.0))
    (master,) = optimizer.masters().values()
    for _ in range(3):
        torch.autograd.backward((param * 40000.0).sum())  # the second sum overflows in half
        optimizer.collect_gradients()
        optimizer.collect_gradients()
    assert master.grad.item() == 3 * torch.tensor(40000.0).half().item()


@pytest.mark.parametrize("clear", ["optimizer", "model", "grad"])
def test_gradients_are_forgotten_however_they_are_cleared(clear: str) -> None:
    model = _one()
    optimizer = MasterWeights(SGD(model.parameters(), lr=1e-3))
    (master,) = optimizer.masters().values()
    for _ in range(2):
        torch.autograd.backward(model.weight.sum())
        optimizer.step()
        assert master.grad.item() == 1.0
        if clear == "optimizer":
            optimizer.zero_grad()
            assert master.grad is None
        elif clear == "model":
            model.zero_grad()
        else:
            model.weight.grad = None
    if clear != "grad":
        optimizer.collect_gradients()
        assert master.grad is None


def test_without_clearing_gradients_accumulate_as_in_torch() -> None:
    model = _one()
    optimizer = MasterWeights(SGD(model.parameters(), lr=1e-3))
    for n in (1.0, 2.0, 3.0):
        torch.autograd.backward(model.weight.sum())
        (master,) = optimizer.master_parameters()
        assert master.grad.item() == n


def _one() -> nn.Linear:
    return linear(1, 1, bias=False).half()


def test_an_infinite_half_gradient_stays_infinite() -> None:
    model = _one()
    optimizer = MasterWeights(SGD(model.parameters(), lr=1e-3))
    torch.autograd.backward((model.weight * 1e4 * 10.0).sum())
    (master,) = optimizer.master_parameters()
    assert master.grad.isinf().all()


class Tied(nn.Module):
    """Tied embedding and head, a frozen layer, an FP32 norm, one parameter that nothing uses."""

    def __init__(self, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8).half()
        self.frozen = nn.Linear(8, 8).half().requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).half()
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.ones(3).half())
        self.checkpointing = checkpointing

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.frozen(self.embed(tokens))
        x = checkpoint(self.body, x, use_reentrant=False) if self.checkpointing else self.body(x)
        return self.head(self.norm(x.float()))


@pytest.mark.parametrize("fused", [False, True])
def test_tied_frozen_unused_and_fp32_parameters_with_and_without_checkpointing(
    seed: Seed, fused: bool
) -> None:
    results = []
    for checkpointing in (False, True):
        seed(0)
        model = Tied(checkpointing=checkpointing)
        frozen, unused = model.frozen.weight.clone(), model.unused.clone()
        optimizer = MasterWeights(AdamW(model.parameters(), lr=1e-2, fused=fused))
        scaler = torch.amp.GradScaler(chosen_device().type, init_scale=256.0)
        tokens = torch.randint(0, 11, (16, 4))
        losses = []
        for _ in range(20):
            with torch.autocast(chosen_device().type, torch.float16):
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0]
        assert torch.equal(model.frozen.weight, frozen)
        assert torch.equal(model.unused, unused)
        assert model.head.weight is model.embed.weight
        assert model.norm.weight in set(optimizer.param_groups[0]["params"])
        assert_law(optimizer)
        results.append(losses)
    assert results[0] == results[1]


@each("name", OPTIMIZERS)
@each("model_last", [False, True])
def test_stop_and_resume_is_bitwise(name: str, model_last: bool) -> None:
    model, optimizer = model_and(name)
    resumed, other = model_and(name)
    backward(resumed, 99)
    other.step()
    other.zero_grad()
    for step in range(10):
        if step == 5:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            if not model_last:
                resumed.load_state_dict(saved["model"])
            other.load_state_dict(saved["optimizer"])
            if model_last:
                resumed.load_state_dict(saved["model"])
            assert_law(other)
        for m, o in ((model, optimizer), (resumed, other))[: 1 + (step >= 5)]:
            backward(m, step)
            o.step()
            o.zero_grad()
    assert all(map(torch.equal, model.parameters(), resumed.parameters()))
    assert all(map(torch.equal, optimizer.master_parameters(), other.master_parameters()))


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model, optimizer = model_and("adamw-fused")
    backward(model, 0)
    optimizer.step()
    before = optimizer.state_dict()
    plain = AdamW(model.parameters(), lr=1.0)
    with pytest.raises(UsageError, match=r"0 master weights .* the 4"):
        optimizer.load_state_dict(plain.state_dict())
    wrong: dict[str, Any] = {**before, "masters": {i: torch.ones(1) for i in range(4)}}
    with pytest.raises(UsageError, match="Nothing was loaded"):
        optimizer.load_state_dict(wrong)
    assert optimizer.param_groups[0]["lr"] == 1e-4
    assert_law(optimizer)


def test_a_run_of_a_plain_optimizer_goes_on_with_masters() -> None:
    model = network(torch.Generator().manual_seed(3)).half()
    plain = SGD(model.parameters(), lr=1e-3, momentum=0.9)
    backward(model, 0)
    plain.step()
    momenta = [plain.state[p]["momentum_buffer"].float() for p in model.parameters()]
    optimizer = MasterWeights(plain)
    for master, momentum in zip(optimizer.master_parameters(), momenta, strict=True):
        assert torch.equal(optimizer.state[master]["momentum_buffer"], momentum)
        assert optimizer.state[master]["momentum_buffer"].dtype is torch.float32
    optimizer.step()
    assert len(plain.state) == 4
    assert_law(optimizer)


def test_weights_written_from_outside_are_followed_and_swaps_lose_no_digit() -> None:
    model, optimizer = model_and("adamw-foreach")
    for step in range(3):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()
    masters = [m.detach().clone() for m in optimizer.masters().values()]
    trained = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict({k: torch.zeros_like(v) for k, v in trained.items()})
    model.load_state_dict(trained)
    optimizer.step()  # no gradients: the masters show what was followed
    assert all(map(torch.equal, masters, optimizer.masters().values()))
    model.load_state_dict({k: torch.full_like(v, 0.25) for k, v in trained.items()})
    optimizer.step()
    assert all((m == 0.25).all() for m in optimizer.masters().values())
    assert_law(optimizer)


def test_a_copy_of_model_and_optimizer_goes_its_own_way() -> None:
    model, optimizer = model_and("adamw-foreach")
    backward(model, 0)
    optimizer.step()
    optimizer.zero_grad()
    other_model, other = copy.deepcopy((model, optimizer))
    for m, o in ((model, optimizer), (other_model, other)):
        backward(m, 1)
        o.step()
        assert_law(o)
    assert all(map(torch.equal, optimizer.master_parameters(), other.master_parameters()))
    assert not set(model.parameters()) & set(other.masters())
    assert set(other.masters()) == set(other_model.parameters())


def test_a_closure_is_run_and_its_gradients_are_used() -> None:
    model = _one()
    optimizer = MasterWeights(SGD(model.parameters(), lr=0.25))

    def closure() -> float:
        optimizer.zero_grad()
        loss = model.weight.sum()
        torch.autograd.backward(loss)
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert model.weight.item() == 0.75


def test_a_group_can_be_added_but_a_parameter_only_once() -> None:
    model, extra = _one(), nn.Parameter(torch.ones(2).half())
    optimizer = MasterWeights(SGD(model.parameters(), lr=0.5))
    optimizer.add_param_group({"params": [extra], "lr": 0.25})
    torch.autograd.backward(extra.sum())
    optimizer.step()
    assert torch.equal(extra, torch.full((2,), 0.75).half())
    with pytest.raises(UsageError, match="updated twice"):
        optimizer.add_param_group({"params": [extra]})
    assert len(optimizer.param_groups) == 2


def test_what_cannot_be_wrapped_is_refused() -> None:
    model = _one()
    with pytest.raises(UsageError, match="LBFGS"):
        MasterWeights(torch.optim.LBFGS(model.parameters()))
    optimizer = MasterWeights(SGD(model.parameters()))
    with pytest.raises(UsageError, match="MasterWeights"):
        MasterWeights(optimizer)
    model.weight.grad = torch.ones(1, 1).half().to_sparse()
    with pytest.raises(UsageError, match="sparse"):
        optimizer.step()


def cost(n: int) -> dict[str, dict[str, int]]:
    """Dispatched operations of each phase for ``n`` half parameters, without the inner step."""
    params = [nn.Parameter(torch.ones(2).half()) for _ in range(n)]
    optimizer = MasterWeights(SGD(params, lr=0.5, foreach=True))
    optimizer.inner.step = lambda _closure: None  # type: ignore[assignment]
    counts = {}

    def measure(name: str, call: Callable[[], None]) -> None:
        with OpCounter() as counter:
            call()
        assert counter.host_syncs == 0
        # torch itself records every step() for its profiler.
        counts[name] = {k: n for k, n in counter.ops.items() if not k.startswith("profiler.")}

    for name in ("collect", "accumulate"):
        for param in params:
            if param.grad is None:
                param.grad = torch.ones(2).half()
            else:
                param.grad += 1
        measure(name, optimizer.collect_gradients)
    measure("collect again", optimizer.collect_gradients)
    measure("step", optimizer.step)
    return counts


@pytest.mark.on_standin
def test_cost_does_not_depend_on_the_number_of_parameters() -> None:
    small, large = cost(20), cost(2000)
    assert small == large
    totals = {name: sum(ops.values()) for name, ops in small.items()}
    assert totals == {"collect": 3, "accumulate": 4, "collect again": 0, "step": 1}


def syncs(*, masters: bool) -> list[int]:
    """Host syncs of ``scaler.step`` with fused AdamW, in three steps."""
    model = network(torch.Generator().manual_seed(3))
    optimizer: torch.optim.Optimizer = AdamW(model.half().parameters(), lr=1e-4, fused=True)
    if masters:
        optimizer = MasterWeights(optimizer)
    scaler = torch.amp.GradScaler(chosen_device().type, init_scale=256.0)
    found = []
    for _ in range(3):
        with torch.autocast(chosen_device().type, torch.float16):
            loss = model(torch.ones(8, 16)).float().square().mean()
        torch.autograd.backward(scaler.scale(loss))
        with OpCounter() as counter:
            scaler.step(optimizer)
        found.append(counter.host_syncs)
        scaler.update()
        optimizer.zero_grad()
    return found


@pytest.mark.on_standin
def test_no_host_sync_is_added_to_a_fused_step() -> None:
    assert syncs(masters=True) == syncs(masters=False) == [0, 0, 0]


# -- plain half weights stall; masters learn what FP32 learns


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_end_where_fp32_ends_and_plain_half_does_not(name: str) -> None:
    build = OPTIMIZERS[name]
    before, fp32 = train(Precision.FP32, build, masters=False)
    _, plain = train(Precision.FP16_WEIGHTS, build, masters=False)
    _, masters = train(Precision.FP16_WEIGHTS, build, masters=True)
    assert fp32 < 0.8 * before
    # SGD moves nothing at all. AdamW's own state is half as well then, and does worse than nothing.
    assert math.isnan(plain) or plain > 0.99 * before
    assert masters == pytest.approx(fp32, rel=0.01)


def test_masters_of_an_fp32_model_change_nothing() -> None:
    build = OPTIMIZERS["adamw-foreach"]
    assert train(Precision.FP32, build, masters=True) == train(Precision.FP32, build, masters=False)
