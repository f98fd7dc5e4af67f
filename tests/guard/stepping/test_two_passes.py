"""A bad step is run twice as it was; if the two passes read different values, it is skipped and said why."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.errors import UsageError
from halfguard.guard.guard import Guard
from halfguard.tracing.values_read import ValuesRead

pytestmark = pytest.mark.usefixtures("seed")

RETRY: dict[str, Any] = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}
Loss = Callable[[nn.Module, Any], Tensor]


def train(loss_fn: Loss, bad: tuple[int, ...] = (3,), config: Any = None) -> list[str]:
    """Train for six steps, with a loss that is infinite in half at the bad ones; return the actions."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY if config is None else config)

    def overflowing(model: nn.Module, batch: Any) -> Tensor:
        loss = loss_fn(model, batch)
        in_half = torch.is_autocast_enabled("cpu")
        return loss * torch.inf if in_half and guard.step_index in bad else loss

    return [str(guard.step(overflowing, torch.randn(3, 4)).action) for _ in range(6)]


def plain_loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).float().square().mean()


@pytest.fixture
def counted_file(tmp_path: Path) -> Callable[[], float]:
    """A number in a file, which nobody can put back, one larger each time it is read."""
    path = tmp_path / "count"
    path.write_text("1")

    def read() -> float:
        number = int(path.read_text())
        path.write_text(str(number + 1))
        return float(number)

    return read


def as_number(count: float, loss: Tensor) -> Tensor:
    return loss * count


def as_tensor(count: float, loss: Tensor) -> Tensor:
    return loss * torch.tensor([count]).sum()


def as_operations(count: float, loss: Tensor) -> Tensor:
    return loss if count % 2 else loss.tanh()


@pytest.mark.parametrize("use", [as_number, as_tensor, as_operations])
def test_a_step_that_reads_another_value_each_time_is_skipped_and_its_line_named(
    use: Callable[[float, Tensor], Tensor],
    counted_file: Callable[[], float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return use(counted_file(), plain_loss(model, batch))

    actions = train(loss, bad=(3, 5))
    assert actions == ["apply"] * 3 + ["skip", "apply", "skip"]
    told = [text for text in caplog.messages if "cannot be restored" in text]
    assert len(told) == 1
    assert told[0].startswith("step 3 changes a value that test_two_passes.py:")
    assert "loss" in told[0].partition("(")[2].partition(") reads")[0]
    with pytest.raises(UsageError, match="cannot be repeated"):
        train(loss, config=RETRY | {"skip": RETRY["skip"] | {"strict": True}})


def test_random_numbers_that_a_cache_keeps_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.utils.counters.clear()  # compiled code, of other tests too, draws other numbers

    @functools.lru_cache
    def noise(_step: int) -> float:
        return random.random()

    seen: list[int] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append(0)
        return plain_loss(model, batch) * noise(len(seen))

    actions = train(loss)
    assert actions[3] == "skip"
    assert "step 3 changes a random number generator" in caplog.text


@torch.library.custom_op("halfguard_tests::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """Return the input with an error of its own each time, as kernels that add in any order do."""
    return x * (1 + int.from_bytes(os.urandom(2)) / 2**30)


@pytest.mark.parametrize("decides", [False, True])
def test_results_that_differ_by_themselves_do_not_keep_a_step_from_being_repeated(
    decides: bool,
) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = plain_loss(model, batch)
        with torch.no_grad():
            error = noisy(batch.square().sum())
        return value * error.item() if decides else value + error

    assert train(loss)[3] == "retry_fp32"


def test_a_cache_that_the_first_pass_fills_is_no_difference() -> None:
    tables: dict[str, Tensor] = {}
    passes = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        passes.append(torch.is_autocast_enabled("cpu"))
        if os.environ.get("TABLE") is None and len(passes) > 3:  # as where compiled code ran before
            os.environ["TABLE"] = "made"
            tables["ones"] = torch.ones(4) * 1.0
        return plain_loss(model, batch + tables.get("ones", 0.0))

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TABLE", "")
        del os.environ["TABLE"]
        assert train(loss)[3] == "retry_fp32"


def test_a_hidden_state_with_a_graph_is_put_back() -> None:
    hidden = torch.zeros(3, 4)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal hidden
        before = hidden.detach()
        hidden = model(batch + before).float().tanh()
        return hidden.square().mean()

    assert train(loss) == ["apply"] * 3 + ["retry_fp32"] + ["apply"] * 2
    assert hidden.isfinite().all()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_step_with_an_operator_of_higher_order_is_repeated() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        y = model(batch).float()
        return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,)).square().mean()

    assert train(loss)[3] == "retry_fp32"


def test_a_method_that_is_never_called_does_not_slow_down_every_step() -> None:
    class Part:
        def __init__(self) -> None:
            self.rate, self.weights = 0.1, [torch.ones(1)] * 50

        def set_rate(self, rate: float) -> None:
            self.rate = rate

    parts = [Part() for _ in range(20)]
    model = nn.Linear(4, 4)
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return plain_loss(model, batch) * parts[0].rate

    for _ in range(5):
        guard.step(loss, torch.ones(1, 4))
    saved = [value for holder, value in guard._stepper.step_state.saved if value == {"rate": 0.1}]
    assert len(saved) == 20
    assert len(guard._stepper.step_state.saved) < 40


def test_a_loss_function_that_reads_the_number_of_the_step_reads_the_same_again() -> None:
    model, seen = nn.Linear(4, 4), set[int]()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        in_half = torch.is_autocast_enabled("cpu")
        if guard.step_index == 2 and not in_half:
            seen.add(guard.step_index)
        value = plain_loss(model, batch) * (guard.step_index + 1)
        return value * torch.inf if in_half and guard.step_index == 2 else value

    actions = [str(guard.step(loss, torch.ones(1, 4)).action) for _ in range(4)]
    assert actions == ["apply", "apply", "retry_fp32", "apply"]
    assert seen == {2}


def test_random_draws_and_views_of_known_memory_are_read_once() -> None:
    data = torch.arange(12.0).view(3, 4)

    def run() -> ValuesRead:
        torch.manual_seed(0)
        with ValuesRead() as values:
            (torch.rand(4) * data[1] + data[2]).sum()
        return values

    first = run()
    assert run().first_difference(first) == ""
    data[0, 0] = 5.0
    assert "data[1]" in run().first_difference(first)
