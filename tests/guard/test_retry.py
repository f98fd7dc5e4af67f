"""No batch is lost to half precision: a step that overflows only there is repeated in FP32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import halfguard as hg
from halfguard.guard.guard import Guard
from halfguard.records import Action, Cause, Summary
from halfguard.workload.memory import measure_step_memory
from tests.support.devices import chosen_device
from tests.support.models import OPTIMIZERS, Batch, batches, differences, loss_fn, make

pytestmark = pytest.mark.usefixtures("device", "seed")

RETRY = {"skip": {"on_nonfinite": "retry_fp32"}, "scale": {"init": 1024.0}}


@pytest.mark.on_standin
def test_a_batch_that_fp32_cannot_save_is_skipped_and_recorded() -> None:
    model = make("mlp-batchnorm")
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    guard = Guard(
        model, optimizer, {"skip": {"on_nonfinite": "retry_fp32"}, "scale": {"init": 64.0}}
    )

    def log_of_zero(model: nn.Module, batch: Batch) -> Tensor:
        return loss_fn(model, batch).sub(torch.zeros(()).log() * model(batch[0]).mean())

    before = {k: v.clone() for k, v in model.state_dict().items()}
    outcome = guard.step(log_of_zero, batches(1)[0], about="shard 3, row 17")
    assert (outcome.action, outcome.cause) == (Action.SKIP, Cause.FORWARD_OVERFLOW)
    assert differences(before, model.state_dict()) == []
    (row,) = guard._recorder.journal.recent_rows(1)
    assert "shard 3, row 17" in row.to_json()
    assert "float32[8, 12]" in row.to_json()


@pytest.mark.on_standin
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_batch_is_repeated_in_fp32_as_well(
    dtype: torch.dtype, seed: Callable[[int], None]
) -> None:
    ends = []
    for given in (dtype, torch.float32):
        seed(0)
        model = make("mlp-batchnorm")
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        skip = {"on_nonfinite": "retry_fp32"}
        guard = Guard(model, optimizer, {"skip": skip, "scale": {"init": 64.0}})
        x, y = batches(1)[0]
        x[0, :4] = 60_000.0
        batch: dict[str, Any] = {"inputs": [x.to(dtype).to(given)], "y": y}

        def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
            return loss_fn(model, (batch["inputs"][0] * 4, batch["y"]))

        assert guard.step(loss, batch).action is Action.RETRY
        assert batch["inputs"][0].dtype is given
        ends.append(model.state_dict())
    assert differences(*ends) == []


def test_a_half_network_beside_the_model_gets_the_half_batch() -> None:
    torch.manual_seed(0)
    teacher = nn.Linear(8, 8).half().requires_grad_(False)
    model = nn.Linear(8, 8)

    def loss(model: Any, batch: Any) -> Tensor:
        with torch.no_grad(), torch.autocast(chosen_device().type, enabled=False):
            target: Tensor = teacher(batch["x"]).float()
        out: Tensor = model(batch["x"].float())
        loud: Tensor = (out * batch["gain"]).square().mean()
        return loud + (out - target).square().mean()

    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=1e-3), RETRY)
    given = {"x": torch.randn(4, 8).half(), "gain": 1e4}
    assert guard.step(loss, given).action is Action.RETRY


def test_a_parameter_in_a_half_batch_is_trained_by_a_repeated_step() -> None:
    torch.manual_seed(0)
    model, rows = nn.Linear(8, 8), nn.Parameter(torch.randn(4, 8))

    def loss(model: Any, batch: Any) -> Tensor:
        hidden: Tensor = model(batch["rows"]) + model(
            batch["half"]
        )  # FP32 layers reject half tensors
        return (hidden * 1e6).square().mean() / 1e6  # the product is half on every device

    guard = Guard(model, torch.optim.SGD([*model.parameters(), rows], lr=1e-2), RETRY)
    before = rows.detach().clone()
    given = {"rows": rows, "half": torch.rand(4, 8).half()}
    assert guard.step(loss, given).action is Action.RETRY
    assert not torch.equal(before, rows)


@pytest.mark.parametrize("half", [False, True])
def test_after_a_remedy_a_loss_function_may_take_its_batch_apart(half: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def loss(model: Any, batch: Any) -> Tensor:
        target = batch.pop("y")
        hidden: Tensor = model(batch["x"])
        return (hidden.float() - target).square().mean()

    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), RETRY)
    guard._continue_with(guard.config.model_copy(update={"precision": "fp32"}))
    for factor, action in ((1.0, Action.APPLY), (torch.nan, Action.SKIP), (1.0, Action.APPLY)):
        x = torch.randn(8, 4)
        batch = {"x": x.half() if half else x, "y": torch.randn(8, 1) * factor}
        assert guard.step(loss, batch).action is action


def only_half(hidden: Tensor) -> Tensor:
    """Refuse FP32, as a fused attention does."""
    if hidden.dtype is torch.float32:
        raise RuntimeError("only 16-bit tensors are supported")
    return hidden


def half_before_linear(hidden: Tensor) -> Tensor:
    return functional.linear(hidden.half(), torch.ones(8, 8, device=hidden.device))


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.half = x.dtype is torch.float16
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        assert ctx.half
        return gradient


@pytest.mark.parametrize("insists", [only_half, half_before_linear, FailsInBackward.apply])
def test_a_repeat_that_raises_is_the_skip_that_would_have_been(
    insists: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    def run(on_nonfinite: str) -> tuple[list[str], dict[str, Any], Summary]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        guard = hg.Guard(
            model,
            optimizer,
            # It overflows at first, as usual, more often than bad steps may follow each other.
            {
                "scale": {"init": 2.0**24},
                "skip": {"on_nonfinite": on_nonfinite, "max_consecutive": 5},
            },
        )

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            hidden = insists(model(x))
            return (hidden * hidden).float().mean()

        batches = [torch.randn(4, 8) * (6e4 if index == 16 else 1) for index in range(20)]
        actions = [str(guard.step(loss, batch).action) for batch in batches]
        state = {"model": model.state_dict(), "scale": guard.scaler.get_scale()}
        return actions, state, guard.summary()

    skipped = run("skip")
    caplog.clear()
    retried = run("retry_fp32")
    assert retried[0] == skipped[0]
    assert retried[0][16:18] == ["skip", "apply"]
    torch.testing.assert_close(retried[1], skipped[1], rtol=0, atol=0)
    assert retried[2].skipped == skipped[2].skipped
    assert sum("could not be repeated in FP32" in text for text in caplog.messages) == 1


def test_a_repeated_step_needs_the_memory_of_a_step_in_fp32_at_a_look_too() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
            self.register_buffer("table", torch.ones(2**18))  # read, never written

        def forward(self, x: Tensor) -> Tensor:
            x = x.repeat(1024, 1) + self.get_buffer("table")[:64]
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return x * (torch.inf if x.dtype is torch.float16 else 1.0)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean()

    def peak(*, guarded: bool) -> int:
        model, x = Deep(), torch.randn(4, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"skip": {"on_nonfinite": "retry_fp32"}}
        guard = hg.Guard(model, optimizer, config) if guarded else None

        def step() -> None:
            if guard is not None:
                assert guard.step(loss, x).action is Action.RETRY
            else:
                loss(model, x).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                optimizer.zero_grad()

        device = torch.device("cpu")
        return measure_step_memory(step, model=model, optimizer=optimizer, device=device).peak

    assert peak(guarded=True) <= 1.03 * peak(guarded=False)
