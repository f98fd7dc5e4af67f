"""Healing in models that are compiled, checkpointed, half by themselves, or trained by a framework."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import halfguard as hg
from halfguard.guard.guard import Guard
from halfguard.guard.hosted import HostedGuard
from halfguard.precision_names import Precision
from halfguard.records import Action
from tests.guard.healing.jobs import (
    BY_NAME,
    HEAL,
    RETRY,
    ConvNet,
    Cubes,
    Job,
    Plain,
    energy_loss,
    loss_fn,
)
from tests.guard.helper import islands

pytestmark = pytest.mark.usefixtures("seed")


def train(model: nn.Module, work: hg.Workload, config: Any, steps: int) -> list[Action]:
    guard = Guard(model, work.optimizer, config)
    return [guard.step(work.loss, batch).action for batch in work.take(steps)]


@pytest.mark.slow
def test_a_compiled_model_is_compiled_again_with_its_islands() -> None:
    torch.compiler.reset()
    work = BY_NAME["gate"].job(0)
    model: Any = torch.compile(work.model, backend="eager")
    actions = train(model, work, HEAL, 32)
    assert islands(work.model) == ["blocks.0", "blocks.1"]
    assert actions.count(Action.RETRY) == 3
    torch.compiler.reset()


@pytest.mark.slow
def test_no_line_is_chosen_in_a_compiled_model(caplog: pytest.LogCaptureFixture) -> None:
    torch.compiler.reset()
    work = BY_NAME["own-weights"].job(0)
    model: Any = torch.compile(work.model, backend="eager")
    actions = train(model, work, HEAL, 40)
    # Only the whole model would do. It stays in half, and the steps are repeated.
    assert not islands(work.model)
    assert actions.count(Action.RETRY) == 5
    assert (
        caplog.text.count("in FP32 fixes the step, but it has 100% of the step's matrix-product")
        == 1
    )
    torch.compiler.reset()


class Checkpointed(ConvNet):
    """The same model; its parts are computed again in the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.start, x, use_reentrant=False)
        return self.head(torch.tanh(self.norm(h)).flatten(1))

    def start(self, x: Tensor) -> Tensor:
        return self.drop(self.scale(torch.relu(self.conv(x[:, None]))))


def test_checkpointed_parts_are_islands_when_they_are_computed_again(device: torch.device) -> None:
    work = Job("checkpointed", Checkpointed, 2, 600.0, loss_fn).job(0)
    actions = train(work.model, work, HEAL, 16)
    assert actions.count(Action.RETRY) == 3
    assert islands(work.model) == ["scale"]


class CheckpointedLine(Plain):
    """A model whose own forward fails inside a part that is computed again."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x, use_reentrant=False)

    def part(self, x: Tensor) -> Tensor:
        squares: Tensor = (self.body(x) * 300.0) * x.square().sum(-1, keepdim=True).sqrt().half()
        return squares / (1 + squares.abs().amax(-1, keepdim=True))


def test_a_line_is_in_fp32_when_it_is_computed_again(device: torch.device) -> None:
    work = Job("line", CheckpointedLine, 2, 400.0, loss_fn).job(0)
    actions = train(work.model, work, HEAL | {"scale": {"init": 256.0}}, 16)
    assert actions.count(Action.RETRY) == 3
    assert not islands(work.model)


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
def test_a_precision_without_a_fault_gets_no_island(precision: str) -> None:
    work = BY_NAME["conv"].job(0)
    actions = train(work.model, work, HEAL | {"precision": precision}, 12)
    assert actions == [Action.APPLY] * 12
    assert not islands(work.model)


class Gates(nn.Module):
    """No norms: torch has no layer_norm with half weights for FP32 inputs on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList([Cubes(16), Cubes(16)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h / (1 + h.abs().amax(-1, keepdim=True)))


def test_half_weights_of_one_process() -> None:
    work = Job("gates", Gates, 4, 60.0, loss_fn).job(0)
    work.store_weights_as(Precision.FP16_WEIGHTS)
    actions = train(work.model, work, {"precision": "fp16-weights", "heal": {}}, 40)
    names = islands(work.model)
    assert names == ["blocks.0"]
    for name, parameter in work.model.named_parameters():
        wide = name.startswith("blocks.0.")
        assert parameter.dtype is (torch.float32 if wide else torch.float16), name
    assert actions[20:] == [Action.APPLY] * 20


def test_hidden_states_survive_a_trial(device: torch.device) -> None:
    class Stateful(ConvNet):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            state = getattr(self, "state", None)
            self.state = out.detach() if state is None else 0.5 * state + out.detach()
            return out + 0.01 * self.state

    ends = []
    for config in (HEAL, RETRY):
        torch.manual_seed(0)
        work = Job("stateful", Stateful, 2, 600.0, loss_fn).job(0)
        train(work.model, work, config, 6)
        ends.append(work.model.state)
    assert torch.equal(*ends)  # type: ignore[arg-type]


def train_hosted(work: hg.Workload, steps: int) -> tuple[HostedGuard, list[Action]]:
    guard = HostedGuard(work.model, work.optimizer, HEAL)
    actions = []
    for batch in work.take(steps):
        with guard.autocast():
            loss = guard.forward(work.loss, batch)
        guard.scale(loss).backward()
        actions.append(guard.apply(work.optimizer).action)
        work.optimizer.zero_grad()
    return guard, actions


@pytest.mark.on_standin
def test_a_hosted_guard_heals_too(device: torch.device) -> None:
    work = BY_NAME["conv"].job(0)
    _, actions = train_hosted(work, 16)
    assert actions.count(Action.RETRY) == 3
    assert islands(work.model) == ["scale"]


@pytest.mark.parametrize("retries", [True, False])
def test_a_hosted_guard_says_what_it_does_not_do(
    retries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work = BY_NAME["conv"].job(0)
    config = HEAL if retries else {"heal": {}}
    guard = HostedGuard(work.model, work.optimizer, config)
    for batch in work.take(6):  # without a way to repeat them
        guard.begin(batch)
        with guard.autocast():
            loss = work.loss(work.model, batch)
        guard.scale(loss).backward()  # type: ignore[arg-type]
        guard.apply(work.optimizer)
        work.optimizer.zero_grad()
    said = "but skipped, nor healed" if retries else "so heal cannot act"
    assert caplog.text.count(said) == 1
    assert not islands(work.model)


def test_a_hosted_guard_heals_a_line_of_a_module() -> None:
    work = BY_NAME["attention"].job(0)
    guard, actions = train_hosted(work, 24)
    (fault,) = guard._healing._memory.healed
    assert fault.island.within == "Attention"
    assert Action.RETRY not in actions[fault.since :]


def test_a_hosted_guard_chooses_no_line_of_a_loss() -> None:
    work = Job("loss", Plain, 5, 400.0, energy_loss).job(0)
    guard, _ = train_hosted(work, 25)
    healing = guard._healing
    assert not healing._memory.healed
