"""Schedulers: a rollback's cut holds for all of torch's; several advance, each with its own optimizer."""

from __future__ import annotations

import copy
import inspect
import io
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import SWALR

from halfguard.errors import UsageError
from halfguard.guard.guard import Guard
from halfguard.guard.learning_rates import LearningRates
from halfguard.guard.recovery.snapshots import restore_types
from halfguard.guard.scheduler_and_ema import SchedulerAndEma
from halfguard.precision.master_weights import MasterWeights
from halfguard.records import Action
from tests.support.cases import each
from tests.support.devices import place
from tests.support.pairs import parametrize_pairs

# SequentialLR steps by the number of an epoch, which torch itself warns of.
pytestmark = [
    pytest.mark.usefixtures("device", "seed"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

L: Any = lr_scheduler
CUTS = [0.5, 0.3]
Make = Callable[[Optimizer], Any]

# One entry for each class of the module; nested schedulers and other modes below.
SCHEDULERS: dict[str, Make] = {
    "LambdaLR": lambda o: L.LambdaLR(o, [lambda i: 0.95**i, lambda i: 1 / (1 + i)]),
    "MultiplicativeLR": lambda o: L.MultiplicativeLR(o, lambda i: 0.9 + 0.01 * (i % 3)),
    "StepLR": lambda o: L.StepLR(o, 3, 0.7),
    "MultiStepLR": lambda o: L.MultiStepLR(o, [2, 7, 7, 12], 0.6),
    "ConstantLR": lambda o: L.ConstantLR(o, 0.3, total_iters=9),
    "LinearLR": lambda o: L.LinearLR(o, 0.1, total_iters=12),
    "ExponentialLR": lambda o: L.ExponentialLR(o, 0.93),
    "SequentialLR": lambda o: L.SequentialLR(
        o, [L.LinearLR(o, 0.1, total_iters=8), L.CosineAnnealingLR(o, 40)], [8]
    ),
    "CosineAnnealingLR": lambda o: L.CosineAnnealingLR(o, 10, eta_min=0.001),
    "ChainedScheduler": lambda o: L.ChainedScheduler(
        [L.LambdaLR(o, lambda i: 1 - 0.01 * i), L.ExponentialLR(o, 0.98)], o
    ),
    "CyclicLR": lambda o: L.CyclicLR(o, [0.01, 0.02], [1.0, 0.5], step_size_up=6),
    "CosineAnnealingWarmRestarts": lambda o: L.CosineAnnealingWarmRestarts(o, 4, 2, 0.01),
    "OneCycleLR": lambda o: L.OneCycleLR(o, [1.0, 0.5], total_steps=60),
    "PolynomialLR": lambda o: L.PolynomialLR(o, 40, 2.0),
    "SWALR": lambda o: SWALR(o, 0.02, anneal_epochs=12),
}


class Holder(LRScheduler):
    """A scheduler that holds another one as an attribute, so its state_dict holds an object."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.after = L.CosineAnnealingLR(optimizer, 50)
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        if self.last_epoch >= 0:
            self.after.step()
        super().step(epoch)


HOLDER = "a scheduler that holds another"
MORE: dict[str, Make] = {
    HOLDER: Holder,
    "SequentialLR of MultiStepLR": lambda o: L.SequentialLR(
        o, [L.ConstantLR(o, 0.5, total_iters=7), L.MultiStepLR(o, [3, 6])], [7]
    ),
    "ChainedScheduler of SequentialLR": lambda o: L.ChainedScheduler(
        [
            L.SequentialLR(o, [L.LinearLR(o, 0.1, total_iters=6), L.StepLR(o, 2)], [6]),
            L.PolynomialLR(o, 40),
        ],
        o,
    ),
    "OneCycleLR, three phases": lambda o: L.OneCycleLR(
        o, 1.0, total_steps=40, three_phase=True, anneal_strategy="linear"
    ),
    "CyclicLR, exp_range": lambda o: L.CyclicLR(o, 0.01, 1.0, 4, mode="exp_range", gamma=0.99),
    "SWALR, linear": lambda o: SWALR(o, 0.5, anneal_epochs=20, anneal_strategy="linear"),
}
NOT_STEPPED_BY_THE_GUARD = {"LRScheduler", "_LRScheduler", "ReduceLROnPlateau"}  # see below


def recovery(**options: Any) -> dict[str, Any]:
    rules = {"every": 5, "max_rollbacks": 5, **options}
    return {"precision": "fp32", "skip": {"max_consecutive": 2}, "recovery": rules}


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return model(place(x)).square().mean() * 1e-6


GOOD, BAD = torch.ones(2, 4), torch.full((2, 4), torch.nan)


class Run:
    """A guarded run that notes the rates of every step that its optimizer takes."""

    def __init__(
        self,
        make: Make | None,
        cut: float = 0.5,
        *,
        tensor: bool = False,
        run_dir: Path | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.cut = cut
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        rates = [torch.tensor(r) if tensor else r for r in (0.2, 0.1)]
        groups = [
            {"params": list(part.parameters()), "lr": rate}
            for part, rate in zip(self.model, rates, strict=True)
        ]
        self.optimizer = (
            Adam(groups, lr=rates[0], foreach=False) if tensor else SGD(groups, momentum=0.9)
        )
        self.scheduler = None if make is None else make(self.optimizer)
        config = recovery(store="disk" if run_dir else "memory")
        self.guard = Guard(
            self.model, self.optimizer, config, scheduler=self.scheduler, run_dir=run_dir
        )
        self.used: list[list[float]] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.used.append(self.rates()))

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def run(self, count: int) -> None:
        for _ in range(count):
            assert self.guard.step(loss_fn, GOOD).applied

    def roll_back(self) -> None:
        with patch("halfguard.guard.recovery.recovery._LR_CUT", self.cut):
            actions = [self.guard.step(loss_fn, BAD).action for _ in range(2)]
        assert actions == [Action.SKIP, Action.ROLL_BACK]

    def state(self) -> bytes:
        file = io.BytesIO()
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        states = {name: part.state_dict() for name, part in parts.items() if part is not None}
        torch.save(states | {"guard": self.guard.state_dict()}, file)
        return file.getvalue()

    def load(self, state: bytes) -> None:
        saved = torch.load(io.BytesIO(state), weights_only=False)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved["scheduler"])
        self.guard.load_state_dict(saved["guard"])


def times(cut: float, rates: list[list[float]]) -> list[list[float]]:
    return [[cut * rate for rate in step] for step in rates]


def test_the_table_has_every_scheduler_of_torch() -> None:
    found = {
        name
        for name, thing in inspect.getmembers(lr_scheduler, inspect.isclass)
        if issubclass(thing, LRScheduler)
    }
    assert found | {"SWALR"} == SCHEDULERS.keys() | NOT_STEPPED_BY_THE_GUARD


@parametrize_pairs(
    name=[*SCHEDULERS, *MORE],
    cut=CUTS,
    store=["memory", pytest.param("disk", marks=pytest.mark.slow)],
)
def test_a_cut_holds_at_every_step_after_a_rollback(
    name: str, cut: float, store: str, tmp_path: Path
) -> None:
    make = (SCHEDULERS | MORE)[name]
    plan = Run(make)
    plan.run(30)
    cut_run = Run(make, cut, run_dir=tmp_path if store == "disk" else None)
    cut_run.run(9)
    cut_run.roll_back()  # to the snapshot of step 5
    cut_run.run(15)
    assert cut_run.used[:9] == plan.used[:9]
    assert cut_run.used[9:] == times(cut, plan.used[5:20])
    # A second one, to a snapshot that was taken under the first cut.
    cut_run.roll_back()
    cut_run.run(10)
    twice = cut * cut
    assert cut_run.used[24:] == times(twice, plan.used[15:25])


@pytest.mark.slow
@each("name", [*SCHEDULERS, *MORE])
def test_a_rate_in_a_tensor_is_cut_as_well(name: str) -> None:
    if name == "SequentialLR" and torch.__version__.startswith("2.9."):
        pytest.skip("torch 2.9 writes the rate over the base rate, so its schedule is wrong itself")
    make = (SCHEDULERS | MORE)[name]
    plan, cut_run = Run(make, tensor=True), Run(make, 0.3, tensor=True)
    plan.run(25)
    cut_run.run(9)
    held = cut_run.optimizer.param_groups[0]["lr"]
    assert isinstance(held, Tensor)
    cut_run.roll_back()
    cut_run.run(15)
    expected = [[float(torch.tensor(rate) * 0.3) for rate in step] for step in plan.used[5:20]]
    assert cut_run.used[9:] == expected


@pytest.mark.on_standin
def test_a_tensor_counts_its_changes() -> None:
    """The cut reads ``Tensor._version``, to see without a host sync whether somebody changed a rate."""
    model = nn.Linear(1, 1)
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.5))
    rates = LearningRates([optimizer], {id(optimizer)})
    rates.roll_back(0.25, rates.planned(), rates.state_dict())
    rate = optimizer.param_groups[0]["lr"]
    assert float(rate) == 0.125
    assert [float(r) for r in rates.planned().values() if r is not None] == [0.5]
    rate.mul_(0.5)
    assert [float(r) for r in rates.planned().values() if r is not None] == [0.25]


@pytest.mark.slow
@each("name", [name for name in (*SCHEDULERS, *MORE) if name != HOLDER])  # it saves its optimizer
@each("tensor", [False, True])
def test_a_checkpoint_keeps_the_cut(name: str, tensor: bool) -> None:
    make = (SCHEDULERS | MORE)[name]
    whole = Run(make, 0.3, tensor=tensor)
    whole.run(9)
    whole.roll_back()
    whole.run(3)
    saved = whole.state()
    whole.run(10)
    again = Run(make, 0.3, tensor=tensor)
    again.load(saved)
    again.run(10)
    assert again.used == whole.used[-10:]


@pytest.mark.slow
@each("name", [*SCHEDULERS, *MORE])
def test_a_resumed_run_keeps_the_cut(name: str, tmp_path: Path) -> None:
    make = (SCHEDULERS | MORE)[name]
    whole = Run(make, 0.3, run_dir=tmp_path)
    whole.run(9)
    whole.roll_back()
    whole.run(9)  # the snapshot after five of these is good
    whole.guard.close()
    again = Run(make, 0.3, run_dir=tmp_path)
    assert again.guard.resume()
    again.run(4)
    assert again.used == whole.used[-4:]


def test_a_scheduler_step_that_raises_leaves_the_rates_cut() -> None:
    run = Run(lambda o: L.OneCycleLR(o, 1.0, total_steps=8))
    run.run(8)
    run.roll_back()
    run.run(3)
    cut = run.rates()
    with pytest.raises(ValueError, match="total steps is 8"):
        run.run(1)
    assert run.rates() == cut


# -- schedulers that the guard does not step


def test_a_rollback_never_raises_a_rate_that_the_user_lowered() -> None:
    run = Run(None)
    plateau = L.ReduceLROnPlateau(run.optimizer, patience=0)
    run.run(9)
    plateau.step(1.0)
    plateau.step(2.0)
    lowered = run.rates()
    assert lowered == pytest.approx([0.02, 0.01])
    run.roll_back()
    assert run.rates() == [rate * 0.5 for rate in lowered]
    run.run(3)
    assert run.rates() == [rate * 0.5 for rate in lowered]
    plateau.step(3.0)
    assert run.rates() == pytest.approx([rate * 0.05 for rate in lowered])
    run.run(6)
    run.roll_back()
    assert run.rates() == pytest.approx([rate * 0.025 for rate in lowered])


def test_a_rate_that_the_user_raised_returns_to_the_snapshots() -> None:
    run = Run(None)
    run.run(9)
    for group in run.optimizer.param_groups:
        group["lr"] *= 3
    run.roll_back()
    assert run.rates() == [0.1, 0.05]


def test_a_scheduler_of_the_user_that_may_undo_the_cut_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for make, told in ((None, False), (L.ReduceLROnPlateau, False),
                       (lambda o: L.LambdaLR(o, lambda _: 1.0), True)):  # fmt: skip
        caplog.clear()
        run = Run(None)
        _own = make and make(run.optimizer)
        run.run(9)
        run.roll_back()
        assert ("the guard does not step the scheduler of SGD" in caplog.text) is told


class OwnRate(SGD):
    """Like transformers' Adafactor: ``lr=None`` means that the optimizer sets its own rate."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["lr"] = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= 0.1 * parameter.grad


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_rate_of_none_is_left_alone(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(4, 1)
    optimizer = OwnRate(model.parameters())
    guard = Guard(model, optimizer, recovery(store=store), run_dir=tmp_path)
    for _ in range(9):
        assert guard.step(loss_fn, GOOD).applied
    actions = [guard.step(loss_fn, BAD).action for _ in range(2)]
    assert actions[-1] is Action.ROLL_BACK
    assert (
        "OwnRate chooses its own learning rate (lr=None), which recovery does not reduce"
        in caplog.text
    )
    assert guard.step(loss_fn, GOOD).applied
    assert optimizer.param_groups[0]["lr"] is None
    guard.load_state_dict(guard.state_dict())
    assert guard.step(loss_fn, GOOD).applied


# -- several schedulers


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


def test_each_scheduler_of_a_list_advances_with_its_own_optimizer() -> None:
    model = Pair()
    first, second = SGD(model.a.parameters(), lr=1.0), SGD(model.b.parameters(), lr=1.0)
    schedulers = [
        L.ExponentialLR(second, 0.5),
        L.LinearLR(first, 0.1, total_iters=4),
        L.ExponentialLR(first, 0.9),
    ]
    guard = Guard(model, [first, second], recovery(), scheduler=schedulers)
    for turn in ([first], [first], [second], [first], [second]):
        guard.backward(loss_fn(model, GOOD))
        for optimizer in turn:
            assert guard.update(optimizer)
    assert [s.last_epoch for s in schedulers] == [2, 3, 3]
    assert second.param_groups[0]["lr"] == 0.25


@pytest.mark.on_standin
def test_each_of_several_schedulers_is_rolled_back_and_cut() -> None:
    model = Pair()
    first, second = SGD(model.a.parameters(), lr=1.0), SGD(model.b.parameters(), lr=1.0)
    schedulers = (L.MultiStepLR(first, [3, 7], 0.5), L.ExponentialLR(second, 0.9))
    guard = Guard(model, [first, second], recovery(), scheduler=schedulers)
    plan = []
    for _ in range(9):
        plan.append([o.param_groups[0]["lr"] for o in (first, second)])
        assert guard.step(loss_fn, GOOD).applied
    for _ in range(2):
        guard.step(loss_fn, BAD)
    for step in range(5, 9):
        assert [o.param_groups[0]["lr"] for o in (first, second)] == [
            0.5 * rate for rate in plan[step]
        ]
        assert guard.step(loss_fn, GOOD).applied


def test_early_steps_are_counted_for_each_scheduler() -> None:
    model = Pair()
    first, second = SGD(model.a.parameters(), lr=1.0), SGD(model.b.parameters(), lr=1.0)
    schedulers = [L.ExponentialLR(first, 0.9), L.ExponentialLR(second, 0.9)]
    parts = SchedulerAndEma(model, [first, second], schedulers, None)
    one, both = frozenset({id(first)}), frozenset({id(first), id(second)})
    parts.undo_early_step(one)
    assert parts.early_steps == [1, 0]
    parts.advance(both)
    assert parts.early_steps == [0, 0]
    assert [s.last_epoch for s in schedulers] == [0, 1]
    parts.early_steps = [0, 2]
    assert parts._early == [0, 2]
    parts.early_steps = 0
    assert parts._early == [0, 0]
    with pytest.raises(UsageError, match="saved with 3 schedulers"):
        parts.early_steps = [1, 2, 3]
    assert SchedulerAndEma(model, [first], None, None).early_steps == 0


def test_a_scheduler_of_the_inner_optimizer_advances_with_master_weights() -> None:
    model = nn.Linear(4, 1).half()
    inner = SGD(model.parameters(), lr=1.0)
    scheduler = L.ExponentialLR(inner, 0.5)
    guard = Guard(model, MasterWeights(inner), "native_fp16", scheduler=scheduler)
    for _ in range(20):
        guard.step(lambda m, x: m(x.half()).float().square().mean() * 1e-3, GOOD)
    assert scheduler.last_epoch == guard.summary().applied > 1


class TimmLike:
    """Like timm's schedulers, whose ``step`` needs an epoch."""

    def step(self, epoch: int, metric: float | None = None) -> None: ...
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Stateless:
    def step(self) -> None: ...


def test_a_scheduler_that_cannot_work_is_refused_at_construction() -> None:
    model = Pair()
    first, other = SGD(model.a.parameters(), lr=1.0), SGD(model.b.parameters(), lr=1.0)
    own = L.ExponentialLR(first, 0.9)
    nested = L.SequentialLR(first, [L.ConstantLR(first), own], [3])

    def refused(scheduler: Any, match: str, config: Any = "default") -> None:
        with pytest.raises(UsageError, match=match) as caught:
            Guard(model, first, config, scheduler=scheduler)
        assert caught.value.cure

    refused([own, L.ReduceLROnPlateau(first)], "needs a metric")
    refused(TimmLike(), r"no step\(\) without arguments")
    refused("cosine", r"no step\(\) without arguments")
    refused([own, own], "would step twice")
    refused([nested, own], "would step twice")
    refused(L.ExponentialLR(other, 0.9), "never be stepped")
    refused(Stateless(), "cannot roll back the scheduler, a Stateless", recovery())
    Guard(model, first, scheduler=[])


# -- states of schedulers and modules


class Size(NamedTuple):
    width: int
    height: int


class Extra(nn.Linear):
    """A module whose extra state has containers of many types."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.extra: Any = {
            "size": Size(2, 3),
            "seen": Counter({7: 2}),
            "order": OrderedDict(b=1, a=2),
            "lists": defaultdict(list, x=[1]),
            "shape": torch.Size([1, 2]),
        }

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_containers_keep_their_types(store: str, tmp_path: Path) -> None:
    model = Extra()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), recovery(store=store), run_dir=tmp_path)
    for _ in range(9):
        assert guard.step(loss_fn, GOOD).applied
    before = copy.deepcopy(model.extra)
    model.extra["seen"][7] += 5
    model.extra["lists"]["x"].append(2)
    for _ in range(2):
        guard.step(loss_fn, BAD)
    assert model.extra == before
    assert [type(value) for value in model.extra.values()] == [
        Size, Counter, OrderedDict, defaultdict, torch.Size
    ]  # fmt: skip
    assert model.extra["lists"]["new"] == []


@pytest.mark.on_standin
def test_data_that_changes_in_place_is_copied_by_the_memory_store() -> None:
    np = pytest.importorskip("numpy")
    model = Extra()
    model.extra = {"array": np.zeros(2), "set": {1}}
    guard = Guard(model, SGD(model.parameters(), lr=0.1), recovery())
    for _ in range(9):
        assert guard.step(loss_fn, GOOD).applied
    model.extra["array"] += 1
    model.extra["set"].add(2)
    for _ in range(2):
        guard.step(loss_fn, BAD)
    assert model.extra["array"].tolist() == [0, 0]
    assert model.extra["set"] == {1}


def test_types_without_a_counterpart_are_kept() -> None:
    assert restore_types({"a": (1, [2])}, None) == {"a": (1, [2])}
    assert restore_types([Size(1, 2)], [])[0] == Size(1, 2)
    assert type(restore_types({"a": 1}, Counter())) is Counter


def test_a_healthy_run_has_the_rates_of_the_bare_loop() -> None:
    for make in (SCHEDULERS | MORE).values():
        run, bare = Run(make), Run(make)
        run.run(12)
        for _ in range(12):
            loss_fn(bare.model, GOOD).backward()  # type: ignore[no-untyped-call]
            bare.optimizer.step()
            bare.scheduler.step()
            bare.optimizer.zero_grad()
        assert run.rates() == bare.rates()
        for ours, theirs in zip(run.model.parameters(), bare.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
