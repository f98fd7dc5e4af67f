"""The text about a bad step follows what was seen, and claims nothing that was not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.errors import TrainingHaltedError
from halfguard.guard.batch_checks import BatchFault
from halfguard.guard.config import GuardConfig
from halfguard.guard.evidence import explain
from halfguard.guard.fault_report import BadWeight, FaultReport, find_bad_weight
from halfguard.guard.guard import Guard
from halfguard.guard.policy import Decision, Signals, StepLimits
from halfguard.records import Action, Cause, StepRow
from tests.support.cases import each

pytestmark = pytest.mark.usefixtures("seed")

NAN_LOSS = Signals(math.nan, math.nan, False, 1024.0)
INF_LOSS = replace(NAN_LOSS, loss=math.inf)
NAN_GRADIENTS = Signals(1.0, math.nan, False, 1.0)
INF_GRADIENTS = replace(NAN_GRADIENTS, grad_norm=math.inf)
CHECKED = FaultReport(batch_known=True)


def text(
    cause: Cause,
    seen: Signals,
    found: FaultReport | None = CHECKED,
    decided: dict[str, Any] | None = None,
    **config: Any,
) -> str:
    decision = Decision(Action.HALT, cause, **decided or {})
    told = explain(decision, seen, found, GuardConfig.load(config))
    return f"{told.evidence} {told.advice}"


# -- NaN or infinity


def test_what_is_nan_and_what_only_infinite_is_said() -> None:
    assert "The loss was NaN before" in text(Cause.FORWARD_OVERFLOW, NAN_LOSS)
    told = text(Cause.FORWARD_OVERFLOW, INF_LOSS)
    assert "The loss was Inf before" in told
    assert "65504" in told
    assert "gradients contained NaN." in text(Cause.GRADIENT_OVERFLOW, NAN_GRADIENTS)
    assert "contained Inf but no NaN." in text(Cause.GRADIENT_OVERFLOW, INF_GRADIENTS)


# -- FP32


@each("mode", ["skip", "retry_fp32", "raise"])
@each(
    ("cause", "seen"),
    [
        (Cause.FORWARD_OVERFLOW, NAN_LOSS),
        (Cause.FORWARD_OVERFLOW, INF_LOSS),
        (Cause.GRADIENT_OVERFLOW, NAN_GRADIENTS),
        (Cause.GRADIENT_OVERFLOW, replace(INF_GRADIENTS, scale=128.0)),
    ],
)
def test_what_fp32_has_too_is_not_blamed_on_half(cause: Cause, seen: Signals, mode: str) -> None:
    told = text(cause, seen, decided={"failed_in_fp32": True}, skip={"on_nonfinite": mode})
    assert "in FP32 as well" in told
    assert "No precision can prevent this" in told
    for wrong in ("retry_fp32", "range of half", "65504", "floor", "not known"):
        assert wrong not in told


@each("cause", [Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW])
@each("precision", ["fp32", "bf16-mixed"])
def test_without_half_nobody_speaks_of_half_or_of_a_scale(cause: Cause, precision: str) -> None:
    seen = replace(NAN_LOSS if cause is Cause.FORWARD_OVERFLOW else NAN_GRADIENTS, scale=1.0)
    told = text(cause, seen, precision=precision)
    for wrong in (" half ", "half:", "scale", "floor", "retry_fp32"):
        assert wrong not in told


def test_whether_fp32_helps_is_unknown_until_it_was_tried() -> None:
    assert "set skip.on_nonfinite='retry_fp32'" in text(Cause.FORWARD_OVERFLOW, NAN_LOSS)
    weights = text(Cause.FORWARD_OVERFLOW, NAN_LOSS, precision="fp16-weights")
    assert "retry_fp32" not in weights  # it has no FP32 weights to repeat a step with
    assert "halfguard replay" in weights
    retrying = text(Cause.FORWARD_OVERFLOW, NAN_LOSS, skip={"on_nonfinite": "retry_fp32"})
    assert "could not be repeated" in retrying
    assert "retry_fp32" not in retrying


# -- the loss scale


def test_the_scale_and_its_floor_are_as_they_are() -> None:
    at_128 = replace(NAN_GRADIENTS, scale=128.0)
    low = text(Cause.GRADIENT_OVERFLOW, at_128)
    assert "The loss scale was 128; it can fall to 6.10352e-05." in low
    at_floor = text(Cause.GRADIENT_OVERFLOW, at_128, scale={"floor": 128.0})
    assert "The loss scale is at its floor of 128." in at_floor
    assert "Lower scale.floor" in at_floor
    at_1 = text(Cause.GRADIENT_OVERFLOW, NAN_GRADIENTS)
    assert "The loss scale was 1, which does not enlarge gradients." in at_1
    assert "floor" not in at_1


def test_gradients_that_are_nan_at_every_scale() -> None:
    seen = replace(NAN_GRADIENTS, scale=1024.0)
    told = text(Cause.GRADIENT_OVERFLOW, seen, decided={"scale": 1024.0})
    assert "They also contained NaN at lower loss scales than 1024, down to 1" in told
    assert "No loss scale prevents this." in told
    assert "range of half" not in told


# -- weights and batch


def test_weights_that_were_bad_before() -> None:
    found = FaultReport(bad_weight=BadWeight("layer.weight", "NaN"))
    told = text(Cause.BAD_WEIGHTS, NAN_LOSS, found)
    assert "The parameter layer.weight contained NaN before the step" in told
    assert "earlier checkpoint" in told
    for wrong in ("half's range", "retry_fp32", "65504"):
        assert wrong not in told


@pytest.mark.parametrize("fault", BatchFault)
def test_what_is_wrong_with_a_batch(fault: BatchFault) -> None:
    told = text(Cause.BAD_BATCH, NAN_LOSS, FaultReport(batch_fault=fault, batch_known=True))
    assert str(fault) in told
    assert ("the cause is unknown" in told) == (fault is BatchFault.MASK)


def test_a_batch_that_was_not_given_is_not_called_finite() -> None:
    assert "weights and batch are finite" in text(Cause.FORWARD_OVERFLOW, NAN_LOSS)
    told = text(Cause.FORWARD_OVERFLOW, NAN_LOSS, FaultReport())
    assert "the weights are finite. The guard did not receive the batch." in told


# -- spikes


def test_a_spike_names_its_limit() -> None:
    limits = StepLimits(loss=2.0, grad_norm=3.0)
    seen = Signals(5.0, 4.0, True, 1.0, limits)
    loss = text(Cause.LOSS_SPIKE, seen, spike={})
    assert (
        "The loss was 5, above its limit of 2, which is computed from the last 128 applied steps."
        in loss
    )
    norm = text(Cause.GRADIENT_SPIKE, seen, spike={})
    assert "above its limit of 3" in norm
    assert "spike.sigma" in norm
    fixed = text(Cause.GRADIENT_SPIKE, seen, skip={"max_grad_norm": 3.0})
    assert "above skip.max_grad_norm of 3" in fixed
    assert "sigma" not in fixed
    infinite = text(Cause.GRADIENT_SPIKE, replace(seen, grad_norm=math.inf))
    assert "Every gradient was finite" in infinite


# -- whole runs


def linear_loss(model: nn.Module, x: Any) -> Tensor:
    y: Tensor = model(x)
    return y.float().square().mean()


def guard_of(model: nn.Module, **config: Any) -> Guard:
    defaults = {"scale": {"init": 128.0}}
    return Guard(model, SGD(model.parameters(), lr=0.1), defaults | config)


def halted(guard: Guard, loss_fn: Any, batch: Any, at_most: int = 40) -> TrainingHaltedError:
    for _ in range(at_most):
        try:
            guard.step(loss_fn, batch)
        except TrainingHaltedError as error:
            return error
    raise AssertionError("the run was not stopped")


@each("mode", ["skip", "retry_fp32", "raise"])
@each("value", [math.nan, math.inf])
def test_weights_that_are_bad_are_the_cause(mode: str, value: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    guard = guard_of(model, skip={"on_nonfinite": mode})
    assert guard.step(linear_loss, torch.randn(8, 4)).applied
    with torch.no_grad():
        model.get_parameter("1.bias")[0] = value
    error = halted(guard, linear_loss, torch.randn(8, 4))
    held = "NaN" if math.isnan(value) else "Inf"
    assert f"bad_weights: The parameter 1.bias contained {held} before the step" in str(error)
    assert guard.summary().skipped.keys() == {Cause.BAD_WEIGHTS}
    assert guard.scaler.get_scale() == 128.0


def test_bad_weights_in_a_loop_of_ones_own_without_the_batch() -> None:
    model = nn.Linear(4, 1)
    guard = guard_of(model)
    nn.init.constant_(model.weight, math.nan)
    with guard.autocast():
        loss = linear_loss(model, torch.randn(8, 4))
    guard.backward(loss)
    assert guard.update().cause is Cause.BAD_WEIGHTS


def test_a_finite_loss_beside_bad_weights_keeps_the_scale() -> None:
    class Unused(nn.Module):
        """A weight that gets NaN gradients though the loss is finite."""

        def __init__(self) -> None:
            super().__init__()
            self.good = nn.Parameter(torch.ones(2))
            self.bad = nn.Parameter(torch.full((2,), math.nan))

        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0, self.bad.square() * self.good, self.good)

    guard = guard_of(Unused())
    outcome = guard.step(lambda m, x: m(x).sum(), -torch.ones(2))
    assert math.isfinite(outcome.loss)
    assert outcome.cause is Cause.BAD_WEIGHTS
    assert guard.scaler.get_scale() == 128.0


def test_a_weight_that_fp32_can_do_without_is_not_the_cause() -> None:
    """A retry shows the truth: the bad weight is not used, and the overflow was one of half."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.constant_(model[1].weight, math.nan)  # type: ignore[arg-type]
    guard = guard_of(model, skip={"on_nonfinite": "retry_fp32"})

    def overflowing(model: Any, x: Tensor) -> Tensor:
        y: Tensor = model[0](x)
        return ((y * 6e4) * 6e4).float().mean() * 1e-9

    outcome = guard.step(overflowing, torch.randn(8, 4))
    assert (outcome.action, outcome.cause) == (Action.RETRY, Cause.FORWARD_OVERFLOW)
    (row,) = guard._recorder.journal.recent_rows(1)
    assert isinstance(row, StepRow)
    assert "In FP32 the step was finite" in row.evidence


def test_a_batch_without_samples_is_the_cause_of_its_nan() -> None:
    model = nn.Linear(4, 1)
    config = {"skip": {"on_nonfinite": "raise"}}
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    with pytest.raises(TrainingHaltedError, match=r"bad_batch: .* one of its tensors is empty"):
        guard.step(lambda model, x: model(x).float().mean(), torch.zeros(0, 4))


def bad_weight(model: nn.Module) -> BadWeight | None:
    return find_bad_weight(model, frozenset(dict(model.named_parameters())))


def test_frozen_infinities_are_meant() -> None:
    model = nn.Linear(2, 2)
    model.mask = nn.Parameter(torch.tensor([0.0, -math.inf]), requires_grad=False)
    assert bad_weight(model) is None
    model.mask = nn.Parameter(torch.tensor([0.0, math.nan]), requires_grad=False)
    assert bad_weight(model) == BadWeight("mask", "NaN")


def test_parameters_without_numbers_are_left_out() -> None:
    odd = [torch.zeros(4, dtype=torch.uint8), torch.ones(2).to(torch.float8_e4m3fn)]
    parameters = [nn.Parameter(tensor, requires_grad=False) for tensor in odd]
    plain = [torch.empty(0), torch.ones(2, device="meta"), torch.tensor([math.inf])]
    model = nn.ParameterList([*parameters, *map(nn.Parameter, plain)])
    assert bad_weight(model) == BadWeight("4", "Inf")


class Attention(nn.Module):
    """Softmax over scores with a mask, as most models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        x: Tensor = self.layer(batch["x"]).float()
        hidden = batch["attention_mask"] == 0
        scores = (x @ x.mT).masked_fill(hidden[:, None, :], -math.inf)
        return scores.softmax(-1) @ x


def masked(*hidden: int) -> dict[str, Tensor]:
    """Return a batch whose second row is masked at these positions."""
    mask = torch.ones(3, 5, dtype=torch.int64)
    mask[1, list(hidden)] = 0
    return {"x": torch.randn(3, 5, 4), "attention_mask": mask}


@pytest.mark.parametrize("mode", ["skip", "retry_fp32"])
def test_a_fully_masked_row_is_named(mode: str) -> None:
    guard = guard_of(Attention(), skip={"on_nonfinite": mode})
    assert guard.step(linear_loss, masked(1, 2, 3, 4)).applied  # masked in part
    told = str(halted(guard, linear_loss, masked(*range(5))))
    assert "bad_batch: The loss was NaN before it was scaled" in told
    assert "its attention mask masks every position of a row" in told
    assert "the cause is unknown" in told
