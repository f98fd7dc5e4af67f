"""The producer is named: 30 planted failures, healthy models, and cases that simple hooks get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.models.zoo import HEALTHY, PLANTED_FAILURES, Job, PlantedFailure, line_of
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from halfguard.errors import UsageError
from halfguard.records.autopsy import Culprit
from halfguard.tracing.first_nonfinite import find_first_nonfinite
from halfguard.tracing.origins import measure_range
from tests.support.cases import each, each_case
from tests.support.counting import LargestResult
from tests.support.devices import place

# The models of this file have random weights.
pytestmark = pytest.mark.usefixtures("seed")

# Their code makes tensors on the host.
NEEDS_HOST = {"rnn-exp", "graph-degree-sum", "attention-masked-row"}


def diagnose(job: Job) -> Culprit | None:
    return find_first_nonfinite(job.loss, job.model)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")  # torch's own, for one of them
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_planted_failure_is_named_by_operation_module_and_line(compiled: bool) -> None:
    with each_case() as case:
        for plant in (plant for plant in PLANTED_FAILURES if plant.compiled == compiled):
            with case(plant):
                assert_named(plant)


@pytest.mark.slow
@pytest.mark.placed_by_hand
@pytest.mark.usefixtures("accelerator")
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_a_planted_failure_is_named_on_an_accelerator() -> None:
    with each_case() as case:
        for plant in (plant for plant in PLANTED_FAILURES if plant.name not in NEEDS_HOST):
            with case(plant):
                assert_named(plant)


def assert_named(plant: PlantedFailure) -> None:
    job = plant.make(0)
    culprit = named(diagnose(Job(place(job.model), job.loss_fn, place(job.batch))))
    found = culprit.op, culprit.module, culprit.phase, culprit.kind, culprit.compiled
    assert found == (plant.op, plant.module, plant.phase, plant.kind, plant.compiled), culprit
    assert (culprit.file, culprit.line) == line_of(plant), culprit
    assert culprit.code.endswith(f"# <- {plant.name}")
    assert culprit.dtype
    if plant.kind == "op":
        assert culprit.inputs
        finite = all(r.nan == r.posinf == 0 for r in culprit.inputs)
        assert finite, culprit
        assert any(r.nan or r.posinf or r.neginf for r in culprit.outputs)
    else:
        assert culprit.name == plant.subject


@each("name", HEALTHY)
def test_an_intended_infinity_is_no_culprit(name: str) -> None:
    assert diagnose(HEALTHY[name](0)) is None


@pytest.mark.parametrize("plant", PLANTED_FAILURES[:3], ids=str)
def test_other_seeds_give_the_same_answer(plant: PlantedFailure) -> None:
    places = {(c.op, c.line) for seed in range(3) if (c := diagnose(plant.make(seed)))}
    assert places == {(plant.op, line_of(plant)[1])}


def run(model: nn.Module, *inputs: Tensor) -> Culprit | None:
    return find_first_nonfinite(lambda: model(*inputs).sum(), model)


def named(culprit: Culprit | None) -> Culprit:
    assert culprit is not None
    return culprit


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


class Net(nn.Module):
    """A linear layer, followed by any function of its output."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.norm, self.then = nn.Linear(4, 4), nn.BatchNorm1d(4), then
        for parameter in self.linear.parameters():
            nn.init.constant_(parameter, 0.25)

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.norm(x) + self.linear(x))


ONES = torch.ones(3, 4)


def test_nothing_is_reported_when_all_is_finite() -> None:
    assert run(Net(torch.tanh), ONES) is None


def test_a_bad_number_that_nobody_uses_is_not_reported() -> None:
    def swallow(x: Tensor) -> Tensor:
        dead = torch.log(x.detach() * 0)  # -inf
        return torch.where(dead.isinf(), x, dead)

    assert run(Net(swallow), ONES) is None


def test_the_harmless_one_is_passed_over_for_the_one_that_matters() -> None:
    def both(x: Tensor) -> Tensor:
        harmless = 1 / (1 + torch.exp(x.abs() * 1e4))
        return harmless + torch.log(x * 0)

    culprit = named(run(Net(both), ONES))
    assert culprit.op == "log"


class PassingOn(TorchFunctionMode):
    """A mode of the user's, such as one that chooses devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_bad_number_is_followed_through_item() -> None:
    model = nn.Linear(2, 2)

    def loss(x: Tensor) -> Tensor:
        rate = torch.div(x.sum(), x.sum() - x.sum())  # <- rate
        with torch.no_grad():
            moved = model.weight.add(torch.ones(2, 2), alpha=-rate.item())
        return (x @ moved).sum()

    culprit = named(find_first_nonfinite(lambda: loss(torch.ones(1, 2)), model))
    assert culprit.op == "div"
    assert culprit.code.endswith("# <- rate")


def test_a_mask_that_is_filled_after_a_bad_number_was_read_is_no_culprit_of_it() -> None:
    model = nn.Linear(2, 2)

    def loss(x: Tensor) -> Tensor:
        (x / (x - x)).sum().item()
        scores = model(x).masked_fill(torch.eye(2, dtype=torch.bool), -torch.inf)
        return scores.softmax(-1).log().sum()  # <- log

    culprit = named(find_first_nonfinite(lambda: loss(torch.ones(2, 2)), model))
    assert culprit.code.endswith("# <- log")


def test_a_mode_that_passes_calls_on_is_not_the_place() -> None:
    def log(x: Tensor) -> Tensor:
        return torch.log(x * 0)

    with PassingOn():
        culprit = named(run(Net(log), ONES))
    assert culprit.code == "return torch.log(x * 0)"


def test_the_model_is_left_as_it_was() -> None:
    model = Net(lambda x: nn.functional.dropout(torch.exp(x * 1e4)))
    model(ONES).sum().backward()
    before = torch.get_rng_state()
    grads = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    assert run(model, ONES) is not None
    assert torch.equal(before, torch.get_rng_state())
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))
    assert hooks(model) == 0


def test_hooks_are_removed_and_the_users_own_error_passes() -> None:
    def fail(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    model = Net(fail)
    with pytest.raises(ZeroDivisionError):
        run(model, ONES)
    assert hooks(model) == 0


def test_a_loop_that_raises_at_a_bad_loss_is_answered() -> None:
    model = Net(lambda x: torch.exp(x * 1e4))

    def step() -> Tensor:
        loss: Tensor = model(ONES).sum()
        if not loss.isfinite():
            raise FloatingPointError("loss is inf")
        return loss

    culprit = named(find_first_nonfinite(step, model))
    assert culprit.op == "exp"


def test_a_step_may_run_its_own_backward_pass() -> None:
    model = Net(lambda x: torch.sqrt(x * 0))

    def step() -> None:
        model(ONES).sum().backward()

    culprit = named(find_first_nonfinite(step, model))
    assert (culprit.op, culprit.phase, culprit.module) == ("sqrt", "backward", "")
    assert "torch.sqrt(x * 0)" in culprit.code
    assert culprit.kernel == "aten.div.Tensor"


def test_a_mapping_with_a_loss_is_a_loss_and_a_number_is_not() -> None:
    model = Net(lambda x: torch.exp(x * 1e4))
    named(find_first_nonfinite(lambda: {"loss": model(ONES).sum()}, model))
    with pytest.raises(UsageError, match="returned float"):
        find_first_nonfinite(lambda: 1.0, model)


def test_an_overflow_of_the_scaled_loss_is_a_backward_failure() -> None:
    model = Net(lambda x: x.half())
    culprit = named(find_first_nonfinite(lambda: model(ONES * 8).float().sum() * 1e6, model))
    assert (culprit.phase, culprit.op) == ("backward", "to")
    assert "model(ONES * 8).float()" in culprit.code


def test_a_mask_that_reaches_the_loss_is_named_as_one() -> None:
    culprit = named(run(Net(lambda x: x.masked_fill(x > -1e9, -torch.inf)), ONES))
    assert culprit.intended
    assert culprit.op == "masked_fill"
    assert "reached the result" in str(culprit)


def test_an_operation_that_adds_its_own_infinity_to_a_mask_is_named() -> None:
    def masked(x: Tensor) -> Tensor:
        mask = torch.zeros(4).masked_fill(torch.arange(4) == 0, -torch.inf)
        huge = (x + 3e38) + (mask + 3e38)
        return torch.softmax(huge, -1)

    culprit = named(run(Net(masked), ONES))
    assert "huge = " in culprit.code


def test_a_bad_buffer_is_named() -> None:
    model = Net(torch.tanh).eval()
    assert model.norm.running_var is not None
    model.norm.running_var[1] = torch.nan
    culprit = named(run(model, ONES))
    assert (culprit.kind, culprit.name, culprit.op) == ("buffer", "norm.running_var", "batch_norm")
    assert "contained NaN or Inf when the step began" in str(culprit)


def test_memory_that_was_never_written_is_not_blamed() -> None:
    def copy(x: Tensor) -> Tensor:
        target = torch.empty(3, 4)
        with torch.no_grad():
            target.copy_(x)
        return x * target

    torch.full((64,), torch.nan)  # freed at once; empty() may get the same memory
    assert run(Net(copy), ONES) is None


def test_integers_empty_tensors_and_nested_outputs_are_no_obstacle() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> dict[str, object]:
            return {"ids": x.argmax(-1), "none": x[:0], "deep": [(x, None)], "text": "hello"}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd, self.linear = Odd(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            deep = self.odd(self.linear(x))["deep"]
            return torch.exp(deep[0][0] * 1e5).log()

    culprit = named(run(Outer(), ONES))
    assert (culprit.op, culprit.module) == ("exp", "")


def test_the_report_reads_like_a_sentence() -> None:
    culprit = run(nn.Sequential(Net(lambda x: torch.exp(x * 1e4))), ONES)
    text = str(culprit)
    assert text.startswith(
        "exp (aten.exp.default) returned the first NaN or Inf in the forward pass, in 0"
    )
    assert "test_first_nonfinite.py:" in text
    assert "self 3x4 float32: 12500 to 12500" in text
    assert "12 +inf" in text


def test_ranges_are_measured_in_parts() -> None:
    tensor = torch.arange(3 * 2**18 + 5, dtype=torch.float32)
    tensor[[7, 2**18, 2**19]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    with LargestResult(tensor) as seen:
        found = measure_range("x", tensor)
    assert (found.low, found.high) == (0, tensor[-1].item())
    assert (found.nan, found.posinf, found.neginf) == (1, 1, 1)
    assert seen.elements <= 2**18
    assert math.isnan(measure_range("x", tensor[7:8]).low)
