"""The fault matrix: every pair of fault, model, optimizer, accumulation and reaction.

Each cell trains a few healthy steps, plants one fault in the last micro-batch of a step, and checks what the
guard did: the cause and the parameters that it names, and the state of every part afterwards.
``scripts/soak cells`` runs the product of all axes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from halfguard.errors import TrainingHaltedError
from halfguard.guard.guard import Guard
from halfguard.guard.stepping.outcome import StepOutcome
from halfguard.precision.emulation import emulate_autocast
from halfguard.records import Action, Cause
from tests.support.devices import choosing, generator_state, set_generator_state
from tests.support.models import OPTIMIZERS, Batch, batches, differences, loss_fn, make, tensors_of
from tests.support.pairs import parametrize_pairs

HEALTHY = 12
SCALE, LARGE_SCALE = 64.0, 2.0**23


@dataclass(frozen=True)
class Fault:
    """A fault to plant, and the cause that must be named."""

    cause: Cause
    inputs: float | None = None  # written into one element of the inputs
    label: int | None = None  # written into every label
    forward: float = 1.0  # factor in a layer's forward pass: 1e6 leaves half, not float32
    gradient: float = 1.0  # factor in a layer's backward pass
    loss: float = 1.0
    scale: float = SCALE


FAULTS = {
    "nan-input": Fault(Cause.BAD_BATCH, inputs=math.nan),
    "inf-input": Fault(Cause.BAD_BATCH, inputs=math.inf),
    "labels-ignored": Fault(Cause.BAD_BATCH, label=-100),
    "forward-overflow": Fault(Cause.FORWARD_OVERFLOW, forward=1e6),
    "gradient-overflow": Fault(Cause.GRADIENT_OVERFLOW, scale=LARGE_SCALE),
    "gradient-spike": Fault(Cause.GRADIENT_SPIKE, gradient=300.0),
    "loss-spike": Fault(Cause.LOSS_SPIKE, loss=100.0),
}
HEALTHY_BATCH = Fault(Cause.BAD_BATCH)  # plants nothing
SPIKES = {Cause.GRADIENT_SPIKE, Cause.LOSS_SPIKE}
GIVES_UP = {"roll back", "halt"}
# Once the scale is at its floor, an overflow is a bad step, not scale calibration.
OVERFLOW_AT_THE_FLOOR = Fault(Cause.GRADIENT_OVERFLOW, gradient=1e8)
RETRIED = {Cause.FORWARD_OVERFLOW, Cause.GRADIENT_OVERFLOW}


class Cell:
    """A guarded run with every part that a step could change."""

    def __init__(
        self, fault: Fault, model: str, optimizer: str, accumulate: int, reaction: str
    ) -> None:
        if reaction in GIVES_UP and fault.cause is Cause.GRADIENT_OVERFLOW:
            fault = OVERFLOW_AT_THE_FLOOR
        self.fault, self.accumulate, self.optimizer_name = fault, accumulate, optimizer
        self.model = make(model)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        # An average makes the host wait; without one, the step of a fused optimizer is decided on the device.
        self.ema = None if optimizer == "adamw-fused" else average(self.model)
        self.guard = Guard(
            self.model,
            self.optimizer,
            config(fault, accumulate, reaction),
            scheduler=self.scheduler,
            ema=self.ema,
        )
        self.data = batches((HEALTHY + 2) * accumulate)
        self.planted: Batch | None = None
        self.cuda_rules = False

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss; a fault belongs to its batch, so a repeated batch has it again."""
        fault = self.fault if batch is self.planted else HEALTHY_BATCH
        model.faulty.forward_factor = fault.forward  # type: ignore[union-attr,assignment]
        model.faulty.gradient_factor = fault.gradient  # type: ignore[union-attr,assignment]
        emulated = self.cuda_rules and torch.is_autocast_enabled("cpu")
        with emulate_autocast("cuda") if emulated else nullcontext():
            return loss_fn(model, batch) * fault.loss

    def run_healthy(self) -> None:
        for batch in self.data[: HEALTHY * self.accumulate]:
            outcome = self.guard.step(self.loss, batch)
        assert outcome.action is Action.APPLY

    def decide(self) -> None:
        """Read the rows that are still on their way: on an accelerator, fused steps are decided late."""
        if self.guard._pending.lag:
            self.guard.summary()

    def run_faulty(self) -> StepOutcome:
        scale = self.guard.scaler._get_scale_async()
        scale.fill_(self.fault.scale)
        batches = self.data[HEALTHY * self.accumulate :][: self.accumulate]
        for batch in batches[:-1]:
            assert self.guard.step(self.loss, batch).action is Action.ACCUMULATE
        outcome = self.guard.step(self.loss, self.plant(batches[-1]))
        self.decide()
        return outcome

    def plant(self, batch: Batch) -> Batch:
        inputs, labels = batch[0].clone(), batch[1].clone()
        if self.fault.inputs is not None:
            inputs[1, 2] = self.fault.inputs
        if self.fault.label is not None:
            labels.fill_(self.fault.label)
        self.planted = (inputs, labels)
        return self.planted

    def state(self) -> Any:
        if self.guard._pending.lag:  # the schedule is ahead until a later step is held back
            return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()["state"]])
        parts: list[Any] = [self.model, self.optimizer, self.scheduler]
        parts += [self.ema] if self.ema else []
        return copy.deepcopy({str(i): part.state_dict() for i, part in enumerate(parts)})


def average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)


def config(fault: Fault, accumulate: int, reaction: str) -> dict[str, Any]:
    skip: dict[str, Any] = {"max_consecutive": 1 if reaction in GIVES_UP else 10}
    if reaction == "retry":
        skip["on_nonfinite"] = "retry_fp32"
    if reaction == "halt" and fault.cause not in SPIKES:
        skip["on_nonfinite"] = "raise"
    return {
        "accumulate": accumulate,
        "clip": {"max_norm": 1.0},
        "scale": {"init": SCALE, "floor": SCALE if reaction in GIVES_UP else 1.0},
        "skip": skip,
        "spike": {"sigma": 20.0},
        "recovery": {"every": 4} if reaction == "roll back" else None,
    }


def assert_blamed(outcome: StepOutcome, cell: Cell) -> None:
    assert outcome.cause is cell.fault.cause
    names = {name for name, _ in cell.model.named_parameters()}
    assert outcome.culprits
    assert names.issuperset(outcome.culprits)


def check_skip(cell: Cell) -> None:
    cell.run_healthy()
    before, scale = cell.state(), cell.fault.scale
    outcome = cell.run_faulty()
    assert outcome.action is Action.SKIP
    assert not outcome
    assert_blamed(outcome, cell)
    assert differences(before, cell.state()) == []
    expected = scale / 2 if cell.fault.cause is Cause.GRADIENT_OVERFLOW else scale
    assert cell.guard.scaler.get_scale() == expected
    for batch in cell.data[-cell.accumulate :]:
        after = cell.guard.step(cell.loss, batch)
    assert (
        after.applied or after.cause is Cause.GRADIENT_OVERFLOW
    )  # the scale is still being calibrated


def check_retry(cell: Cell) -> None:
    cell.run_healthy()
    twin = fp32_twin(cell)
    before = cell.state()
    outcome = cell.run_faulty()
    assert_blamed(outcome, cell)
    if cell.fault.cause in RETRIED:
        assert outcome.action is Action.RETRY
        assert outcome.applied
        expected = twin(cell)
    else:
        assert outcome.action is Action.SKIP
        expected = before
    assert differences(expected, cell.state()) == []


def fp32_twin(cell: Cell) -> Callable[[Cell], dict[str, Any]]:
    """Run the same step in FP32, in a bare loop from the same state."""
    model, random_state = copy.deepcopy(cell.model), generator_state()
    ema = copy.deepcopy(cell.ema)
    optimizer_state = copy.deepcopy(cell.optimizer.state_dict())
    scheduler_state = copy.deepcopy(cell.scheduler.state_dict())

    def step(cell: Cell) -> dict[str, Any]:
        after = generator_state()
        optimizer = OPTIMIZERS[cell.optimizer_name](model.parameters())
        optimizer.load_state_dict(optimizer_state)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        scheduler.load_state_dict(scheduler_state)
        set_generator_state(random_state)
        batches = cell.data[HEALTHY * cell.accumulate :][: cell.accumulate]
        for index, batch in enumerate(batches):
            loss = cell.loss(model, cell.plant(batch) if index == len(batches) - 1 else batch)
            (loss / len(batches) if len(batches) > 1 else loss).backward()
        assert torch.equal(generator_state(), after), "the retried run drew other random numbers"
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if ema is not None:
            ema.update_parameters(model)
        parts: list[Any] = [model, optimizer, scheduler]
        parts += [ema] if ema else []
        return {str(i): part.state_dict() for i, part in enumerate(parts)}

    return step


def check_roll_back(cell: Cell) -> None:
    weights = []
    for index in range(HEALTHY):
        for batch in cell.data[index * cell.accumulate :][: cell.accumulate]:
            assert cell.guard.step(cell.loss, batch).action in {Action.ACCUMULATE, Action.APPLY}
        weights.append(copy.deepcopy(cell.model.state_dict()))
    learning_rate = cell.optimizer.param_groups[0]["lr"]
    outcome = cell.run_faulty()
    assert outcome.action is Action.ROLL_BACK
    assert_blamed(outcome, cell)
    # Snapshots after steps 4, 8 and 12; the one after step 8 is the last that two steps have confirmed. If
    # steps are decided late, so are the snapshots.
    late = cell.guard._pending.lag
    assert differences(weights[7 + late], cell.model.state_dict()) == []
    expected = learning_rate * 0.5 / 0.99 ** (4 - late)
    assert cell.optimizer.param_groups[0]["lr"] == pytest.approx(expected)
    assert cell.guard.summary().rollbacks == 1


def check_halt(cell: Cell) -> None:
    cell.run_healthy()
    cell.guard.end_epoch()
    before = cell.state()
    with pytest.raises(TrainingHaltedError) as caught:
        cell.run_faulty()
    message = str(caught.value)
    assert f"epoch 1, batch {cell.accumulate - 1}, step {HEALTHY}" in message
    assert str(cell.fault.cause) in message
    assert any(name in message for name, _ in cell.model.named_parameters())
    assert caught.value.cure
    assert differences(before, cell.state()) == []


CHECKS = {
    "skip": check_skip,
    "retry": check_retry,
    "roll back": check_roll_back,
    "halt": check_halt,
}
AXES: dict[str, Any] = {
    "fault": FAULTS,
    "model": ["mlp-batchnorm", "transformer"],
    "optimizer": OPTIMIZERS,
    "accumulate": [1, 4],
}


@pytest.mark.usefixtures("seed")
@parametrize_pairs(**AXES, reaction=CHECKS)
@patch("halfguard.guard.spikes.WARM_UP", 8)
def test_the_step_has_its_reaction(
    fault: str, model: str, optimizer: str, accumulate: int, reaction: str
) -> None:
    CHECKS[reaction](Cell(FAULTS[fault], model, optimizer, accumulate, reaction))


@pytest.mark.slow
@pytest.mark.usefixtures("accelerator", "seed")
@parametrize_pairs(**AXES, reaction=["skip", "retry", "roll back"])
@patch("halfguard.guard.spikes.WARM_UP", 8)
def test_an_accelerator_ends_with_the_weights_of_the_cpu(
    fault: str, model: str, optimizer: str, accumulate: int, reaction: str
) -> None:
    """The CPU runs with CUDA's autocast rules, and reads its rows as late as the accelerator.

    Without dropout: for an accelerator, torch rounds it in another order.
    """
    ends = []
    lag = 0
    for device in ("standin", "cpu"):
        with choosing(device):
            torch.manual_seed(1)
            cell = Cell(FAULTS[fault], model, optimizer, accumulate, reaction)
            cell.model.get_submodule("drop").p = 0.0  # type: ignore[assignment]
            cell.cuda_rules = device == "cpu"
            lag = cell.guard._pending.lag = cell.guard._pending.lag or lag
            cell.run_healthy()
            cell.run_faulty()
            for batch in cell.data[-2 * accumulate :]:
                cell.guard.step(cell.loss, batch)
            summary = cell.guard.summary().model_dump()
            parts = (cell.model, cell.optimizer, cell.scheduler, cell.guard.scaler)
            ends.append([on_host([part.state_dict() for part in parts]), summary])
    assert lag == (2 if optimizer == "adamw-fused" and reaction != "retry" else 0)
    assert differences(*ends) == []


def on_host(state: Any) -> Any:
    return {path: v.cpu() if isinstance(v, Tensor) else v for path, v in tensors_of(state).items()}
