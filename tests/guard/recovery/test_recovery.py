"""Recovery: confirmed snapshots, a smaller learning rate, and the ladder of remedies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.errors import TrainingHaltedError
from halfguard.guard.guard import Guard
from halfguard.guard.recovery.snapshot_store import MemoryStore
from halfguard.guard.recovery.snapshots import Snapshots, restore_buffers
from halfguard.numerics.finite import all_finite
from halfguard.records import Action, StepRow
from halfguard.step.random_state import capture_random_state
from tests.support.cases import each
from tests.support.devices import chosen_device, place
from tests.support.models import OPTIMIZERS, Batch, batches, differences, loss_fn, make

pytestmark = pytest.mark.usefixtures("device", "seed")

RECOVERY = {"every": 3, "max_rollbacks": 1}
CONFIG = {
    "scale": {"init": 64.0},
    "skip": {"max_consecutive": 2},
    "recovery": RECOVERY,
    "clip": {"max_norm": 5.0},
}


class Sick:
    """A loss that is NaN from a given call on, unless a remedy is active."""

    def __init__(self, cured: Callable[[Guard], bool]) -> None:
        self.calls, self.cured = 0, cured
        self.guard: Guard | None = None

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        self.calls += 1
        loss = loss_fn(model, batch)
        assert self.guard is not None
        return loss if self.calls <= 8 or self.cured(self.guard) else loss * torch.nan


def run(cured: Callable[[Guard], bool], steps: int = 40) -> tuple[Guard, list[Action]]:
    model = make("mlp-batchnorm")
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    loss = Sick(cured)
    loss.guard = guard = Guard(model, optimizer, CONFIG)
    actions = [guard.step(loss, batch).action for batch in batches(steps)]
    return guard, actions


def lr(guard: Guard) -> float:
    return guard.optimizers[0].param_groups[0]["lr"]


@each(
    ("cured", "rollbacks"),
    [
        (lambda g: lr(g) == pytest.approx(0.05 * 0.5), 1),
        (lambda g: g.config.precision == "fp32", 2),
        (lambda g: lr(g) == pytest.approx(0.05 * 0.5 * 0.1), 3),
        # Each remedy is applied alone: after lower_lr the rate is again the one after the rollbacks.
        (lambda g: g.config.scale.growth_interval == 5000 and lr(g) == pytest.approx(0.025), 4),
        (lambda g: g.config.clip is not None and g.config.clip.max_norm == pytest.approx(1.0), 5),
    ],
)
def test_the_first_remedy_that_helps_is_kept(
    cured: Callable[[Guard], bool], rollbacks: int
) -> None:
    guard, actions = run(cured)
    assert actions.count(Action.ROLL_BACK) == rollbacks
    assert actions[-1] is Action.APPLY
    assert cured(guard)
    assert all_finite(guard.model.state_dict().values())
    rows = [row for row in guard._recorder.journal.recent_rows(100) if isinstance(row, StepRow)]
    remedies = [row.note for row in rows if row.note]
    ladder = ["fp32", "lower_lr", "longer_growth_interval", "tighter_clip"]
    assert remedies == [f"remedy: {name}" for name in ladder[: rollbacks - 1]]


@pytest.mark.on_standin
def test_the_remedy_fp32_takes_batches_in_half() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1)).to(chosen_device())
    seen: list[torch.dtype] = []

    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        out = model(batch["x"])
        seen.append(out.dtype)
        loss: Tensor = out.float().square().mean()
        return loss if len(seen) <= 8 or out.dtype is torch.float32 else loss * torch.nan

    guard = Guard(model, OPTIMIZERS["sgd"](model.parameters()), CONFIG)
    outcomes = [
        guard.step(loss_fn, {"x": torch.randn(6, 4, device=chosen_device()).half()})
        for _ in range(24)
    ]
    assert guard.config.precision == "fp32"
    assert [one.action for one in outcomes].count(Action.ROLL_BACK) == 2
    assert all(one.applied for one in outcomes[-10:])
    assert set(seen[-10:]) == {torch.float32}


def test_when_nothing_helps_the_run_is_stopped_with_all_that_was_tried() -> None:
    with pytest.raises(TrainingHaltedError) as caught:
        run(lambda guard: False)
    message = str(caught.value)
    assert "forward_overflow" in message
    assert "rolled back 1 time" in message
    for remedy in ("fp32", "lower_lr", "longer_growth_interval", "tighter_clip"):
        assert remedy in message


def test_without_a_good_snapshot_there_is_nothing_to_return_to() -> None:
    model = make("mlp-batchnorm")
    guard = Guard(model, OPTIMIZERS["sgd"](model.parameters()), CONFIG)
    first, second = batches(2)
    guard.step(lambda m, b: loss_fn(m, b) * torch.nan, first)
    with pytest.raises(TrainingHaltedError, match="no snapshot to roll back to"):
        guard.step(lambda m, b: loss_fn(m, b) * torch.nan, second)


@pytest.mark.on_standin
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_everything_returns_to_the_snapshot(store: str, tmp_path: Path) -> None:
    model = make("mlp-batchnorm")
    optimizer = OPTIMIZERS["adamw-foreach"](model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    config: dict[str, Any] = CONFIG | {"recovery": RECOVERY | {"store": store}}
    guard = Guard(model, optimizer, config, scheduler=scheduler, run_dir=tmp_path)
    kept = []
    for batch in batches(8):
        guard.step(loss_fn, batch)
        kept.append(copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"])))
    for batch in batches(2):
        outcome = guard.step(lambda m, b: loss_fn(m, b) * torch.nan, batch)
    assert outcome.action is Action.ROLL_BACK
    # Snapshots after steps 3 and 6; steps 7 and 8 confirmed the latter.
    assert differences(kept[5], (model.state_dict(), optimizer.state_dict()["state"])) == []
    assert scheduler.last_epoch == 6
    files = sorted(path.name for path in tmp_path.glob("snapshots/*"))
    assert files == (["000000003", "000000006"] if store == "disk" else [])
    for batch in batches(3):
        assert guard.step(loss_fn, batch)


@pytest.mark.on_standin
def test_nothing_that_is_not_finite_is_taken() -> None:
    model = nn.Linear(2, 2)
    snapshots = Snapshots(model, {}, MemoryStore(), chosen_device())
    assert snapshots.take(0, {}, capture_random_state())
    snapshots.confirm()
    with torch.no_grad():
        model.weight[0, 0] = torch.inf
    assert not snapshots.take(1, {}, capture_random_state())
    snapshots.confirm()
    assert snapshots.good_step == 0
    snapshots.restore()
    assert all_finite(model.state_dict().values())


@pytest.mark.parametrize(("healthy", "action"), [(1, "halt"), (4, "roll_back")])
def test_a_snapshot_from_before_parameters_were_added_is_not_returned_to(
    healthy: int, action: str, tmp_path: Path
) -> None:
    model = make("mlp-batchnorm")
    first, *others = model.parameters()
    optimizer = torch.optim.SGD([first], lr=0.01)
    config: dict[str, Any] = CONFIG | {"recovery": RECOVERY | {"store": "disk"}}
    guard = Guard(model, optimizer, config, run_dir=tmp_path)
    (batch,) = batches(1)
    for _ in range(4):
        assert guard.step(loss_fn, batch).applied
    optimizer.add_param_group({"params": others})
    for _ in range(healthy):
        assert guard.step(loss_fn, batch).applied
    guard.step(lambda m, b: loss_fn(m, b) * torch.nan, batch)
    if action == "halt":
        with pytest.raises(TrainingHaltedError, match="no snapshot to roll back to"):
            guard.step(lambda m, b: loss_fn(m, b) * torch.nan, batch)
    else:
        assert guard.step(lambda m, b: loss_fn(m, b) * torch.nan, batch).action == action
        assert guard.step(loss_fn, batch).applied


# -- a run that is resumed in another precision, as ``precision: auto`` may choose on another card


def started(precision: str, run_dir: Path) -> Guard:
    torch.manual_seed(0)
    model = nn.Linear(12, 4)
    recovery = {"store": "disk", "every": 2}
    config = {"precision": precision, "recovery": recovery, "scale": {"init": 1024.0}}
    return Guard(model, torch.optim.SGD(model.parameters(), lr=0.01), config, run_dir=run_dir)


@pytest.mark.parametrize(
    ("before", "after", "scale"),
    [("bf16-mixed", "fp16-mixed", 1024.0), ("fp16-mixed", "bf16-mixed", 1.0)],
)
def test_it_has_its_own_scale_and_keeps_its_precision(
    before: str, after: str, scale: float, tmp_path: Path
) -> None:
    first = started(before, tmp_path)
    for batch in batches(7):
        first.step(loss_fn, batch)
    first.close()
    resumed = started(after, tmp_path)
    assert resumed.resume()
    assert resumed.step_index == 6
    assert resumed.config.precision == after
    assert resumed.step(loss_fn, batches(1)[0]).scale == scale
    assert resumed._recovery.state_dict()["base"]["precision"] == after


# -- buffers that are not part of the state_dict


GOOD, BAD = torch.ones(2, 4), torch.full((2, 4), torch.nan)


class Net(nn.Module):
    """A running mean, an infinite mask, a cache that grows, and a buffer that cannot be written to."""

    seen: Tensor
    cache: Tensor
    expanded: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        for name, value in {
            "seen": torch.zeros(4),
            "mask": torch.full((2, 2), -torch.inf).triu(1),
            "cache": torch.zeros(1),
            "expanded": torch.zeros(1).expand(3),
        }.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().nan_to_num().mean(0)
        self.cache = torch.zeros(len(self.cache) + 1)
        return self.linear(x)


@pytest.mark.on_standin
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_they_return_to_the_snapshot(store: str, tmp_path: Path) -> None:
    model = Net()
    config: dict[str, Any] = {
        "precision": "fp32",
        "skip": {"max_consecutive": 2},
        "recovery": {"every": 3, "store": store},
    }
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config, run_dir=tmp_path)
    for step in range(5):
        assert guard.step(lambda m, x: m(place(x)).square().mean(), GOOD).applied
        assert model.seen[0] == step + 1
    model.expanded = torch.ones(1).expand(3)
    for _ in range(2):
        outcome = guard.step(lambda m, x: m(place(x)).square().mean(), BAD)
    assert outcome.action is Action.ROLL_BACK
    assert model.seen.tolist() == [3.0] * 4
    assert len(model.cache) == 6, "as after the last applied step: a rollback does not shrink it"
    assert model.expanded.tolist() == [0.0] * 3
    assert guard.step(lambda m, x: m(place(x)).square().mean(), GOOD).applied


def test_a_nan_in_one_is_not_taken() -> None:
    model = Net()
    config = {"precision": "fp32", "recovery": {"every": 3}}
    guard = Guard(model, SGD(model.parameters(), lr=0.1), config)
    model.seen[0] = torch.nan
    for _ in range(4):
        assert guard.step(lambda m, x: m(place(x)).square().mean(), GOOD).applied
    assert not guard._recovery.ready


def test_sparse_and_missing_ones() -> None:
    model = nn.Module()
    model.register_buffer("graph", torch.eye(3).to_sparse(), persistent=False)
    restore_buffers(model, {"graph": (2 * torch.eye(3)).to_sparse(), "gone": torch.ones(1)})
    assert isinstance(model.graph, Tensor)
    assert torch.equal(model.graph.to_dense(), 2 * torch.eye(3))
