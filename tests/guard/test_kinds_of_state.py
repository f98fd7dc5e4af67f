"""Whatever a loss function changes is put back before a repeat or a skip, or named at the first step."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from halfguard.errors import TrainingHaltedError, UsageError
from halfguard.guard.guard import Guard
from tests.guard.kinds_of_state import KINDS, NAMED, PUT_BACK, WIDTH, Job, Loss, Net, loss_fn

pytestmark = pytest.mark.usefixtures("seed")

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "guarded-step.md"
RETRY: dict[str, Any] = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}
SKIP: dict[str, Any] = {"scale": {"init": 8.0}}
STEPS = 7


def overflowing(loss: Loss, bad: Callable[[], bool]) -> Loss:
    """Return the loss function with a result that is infinite in half at the bad step."""

    def wrapped(model: nn.Module, batch: Any) -> Tensor:
        value = loss(model, batch)
        in_half = torch.is_autocast_enabled("cpu")
        return value * torch.inf if in_half and bad() else value

    return wrapped


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(3, WIDTH, generator=generator) for _ in range(STEPS)]


def plain(kind: str, at: int, *, repeated: bool) -> list[Any]:
    """Train without a guard: the bad step in FP32 at once, or not at all."""
    torch.manual_seed(0)
    job = KINDS[kind].make()
    optimizer = SGD(job.model.parameters(), lr=0.1)
    for step, x in enumerate(batches()):
        if step == at and not repeated:
            continue
        with torch.autocast("cpu", torch.float16, enabled=step != at):
            loss = job.loss_fn(job.model, job.batch(x))
        scale = 1.0 if step == at else 8.0
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        for parameter in job.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale
        optimizer.step()
        optimizer.zero_grad()
    return result(job)


def result(job: Job) -> list[Any]:
    return [copy.deepcopy(job.read()), *(p.detach().clone() for p in job.model.parameters())]


def guarded(
    kind: str, at: int, config: dict[str, Any], *, fused: bool = False
) -> tuple[list[Any], list[str]]:
    torch.manual_seed(0)
    job = KINDS[kind].make()
    guard = Guard(job.model, SGD(job.model.parameters(), lr=0.1, fused=fused), config)
    loss = overflowing(job.loss_fn, lambda: guard.step_index == at)
    actions = [str(guard.step(loss, job.batch(x)).action) for x in batches()]
    return result(job), actions


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    slots = getattr(one, "__slots__", None)
    if slots:
        return all(getattr(one, name) == getattr(other, name) for name in slots)
    equal = one == other
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


@pytest.mark.parametrize("at", [0, 5])
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.outcome == PUT_BACK])
def test_what_can_be_put_back_is_put_back_before_a_repeat(
    kind: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    found, actions = guarded(kind, at, RETRY)
    assert actions[at] == "retry_fp32"
    assert same(found, plain(kind, at, repeated=True))
    assert "be restored" not in caplog.text


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.outcome == PUT_BACK])
@pytest.mark.parametrize(("at", "fused"), [(5, False), (5, True), (0, True)])
def test_what_can_be_put_back_is_put_back_after_a_skip(kind: str, at: int, fused: bool) -> None:
    if kind == "generators":
        pytest.skip("a skipped step has drawn its numbers, as in every loop")
    found, actions = guarded(kind, at, SKIP, fused=fused)
    assert actions[at] == "skip"
    assert same(found, plain(kind, at, repeated=False))


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.outcome == NAMED])
def test_what_cannot_be_put_back_is_named_at_the_first_step(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, actions = guarded(kind, 5, RETRY)
    assert actions == ["apply"] * 5 + ["skip"] + ["apply"]
    told = [r.getMessage() for r in caplog.records if "cannot be restored" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("step 0 changes numbers")
    with pytest.raises(UsageError, match="changes numbers"):
        guarded(kind, 5, RETRY | {"skip": RETRY["skip"] | {"strict": True}})


def test_a_schedule_that_the_loss_function_steps_is_put_back() -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer.step()  # without gradients; a schedule warns if it is first

    def stepping(model: nn.Module, batch: Any) -> Tensor:
        schedule.step()
        return loss_fn(model, batch)

    guard = Guard(model, optimizer, RETRY)
    loss = overflowing(stepping, lambda: guard.step_index == 3)
    actions = [str(guard.step(loss, x).action) for x in batches()[:5]]
    assert actions[3] == "retry_fp32"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**5)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_healthy_run_is_the_run_without_a_guard(kind: str) -> None:
    assert same(guarded(kind, -1, RETRY)[0], plain(kind, -1, repeated=True))


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_audit_before_the_first_step_leaves_no_trace(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    job = KINDS[kind].make()
    guard = Guard(job.model, SGD(job.model.parameters(), lr=0.1), RETRY | {"heal": {}})
    guard.audit(job.loss_fn, job.batch(batches()[0]))
    for x in batches():
        guard.step(job.loss_fn, job.batch(x))
    if KINDS[kind].outcome == PUT_BACK:
        assert same(result(job), plain(kind, -1, repeated=True))
        assert not caplog.messages
    else:
        assert [text.startswith("step 0 changes numbers") for text in caplog.messages] == [True]


def test_state_that_appears_later_is_found_at_the_next_look() -> None:
    torch.manual_seed(0)
    model, seen = Net(), [0.0]
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    bad = 12

    def change(_: Tensor) -> None:
        if guard.step_index >= 6:
            seen.append(1.0)

    model.change = change
    loss = overflowing(loss_fn, lambda: guard.step_index == bad)
    for _ in range(20):
        guard.step(loss, torch.ones(1, WIDTH))
    assert len(seen) == 1 + 20 - 6


def test_a_module_that_is_added_later_is_looked_at_at_once() -> None:
    torch.manual_seed(0)
    model = Net()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    for _ in range(11):
        guard.step(loss_fn, torch.ones(1, WIDTH))
    norm = nn.BatchNorm1d(WIDTH)
    model.norm = norm
    model.change = lambda y: norm(torch.cat([y, y + 1]))
    guard.step(loss_fn, torch.full((1, WIDTH), torch.nan))
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [0.0] * WIDTH


def test_entries_that_were_replaced_since_the_last_look_are_put_back() -> None:
    """A new epoch begins with a new dict, which steps then fill."""
    torch.manual_seed(0)
    model = Net()
    held: dict[str, dict[int, int]] = {"epoch": {}}

    def change(_: Tensor) -> None:
        held["epoch"][len(held["epoch"])] = 1
        held["last"] = dict.fromkeys(held["epoch"], 0)

    model.change = change
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    loss = overflowing(loss_fn, lambda: guard.step_index == 11)
    for step in range(13):
        if step == 10:
            held["epoch"] = {}
        guard.step(loss, torch.ones(1, WIDTH))
    assert len(held["epoch"]) == 3


class AttributeDict(dict[str, Any]):
    """A dict whose entries are attributes, so that asking for any other attribute is a KeyError."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_a_batch_may_raise_for_an_attribute_that_it_does_not_have() -> None:
    torch.manual_seed(0)
    model = Net()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    seen: list[float] = []

    def loss(model: nn.Module, batch: AttributeDict) -> Tensor:
        batch["x"] = batch.x * 0.5
        if not torch.is_autocast_enabled("cpu"):
            seen.append(batch.x.sum().item())
        return loss_fn(model, batch.x)

    bad = overflowing(loss, lambda: guard.step_index == 3)
    for _ in range(4):
        outcome = guard.step(bad, AttributeDict(x=torch.ones(1, WIDTH)))
    assert outcome.action == "retry_fp32"
    assert seen == [0.5 * WIDTH]


def test_state_that_was_nan_before_the_step_is_the_cause() -> None:
    model = Net()
    bank = {"keys": torch.zeros(WIDTH)}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        bank["keys"] = bank["keys"] * 0.9 + model(batch).detach().float().mean(0)
        return loss_fn(model, batch) + bank["keys"].sum()

    guard = Guard(
        model, SGD(model.parameters(), lr=0.1), SKIP | {"skip": {"on_nonfinite": "raise"}}
    )
    for _ in range(3):
        guard.step(loss, torch.ones(1, WIDTH))
    bank["keys"] = torch.full((WIDTH,), torch.nan)
    with pytest.raises(TrainingHaltedError, match=r"bad_weights: bank\['keys'\] contained NaN"):
        guard.step(loss, torch.ones(1, WIDTH))


def test_a_long_history_is_not_copied_before_every_step() -> None:
    torch.manual_seed(0)
    model, history = Net(), [float(n) for n in range(200_000)]
    model.change = lambda _: history.append(len(history))
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    loss = overflowing(loss_fn, lambda: guard.step_index in {0, 5})
    actions = [str(guard.step(loss, torch.ones(1, WIDTH)).action) for _ in range(8)]
    assert actions.count("retry_fp32") == 2
    assert len(history) == 200_008
    sizes = [len(saved) for _, saved in guard._stepper.step_state.saved if isinstance(saved, list)]
    assert max(sizes, default=0) < 1000


def test_loss_functions_may_take_turns_within_a_step() -> None:
    model, counts = Net(), [0, 0]

    def first(model: nn.Module, batch: Any) -> Tensor:
        counts[0] += 1
        return loss_fn(model, batch)

    def second(model: nn.Module, batch: Any) -> Tensor:
        counts[1] += 1
        return loss_fn(model, batch)

    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY | {"accumulate": 2})
    for _ in range(6):
        guard.step(first, torch.ones(1, WIDTH))
        guard.step(second, torch.ones(1, WIDTH))
    assert counts == [6, 6]


def test_what_the_loop_does_between_micro_batches_is_not_the_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.data = itertools.cycle(batches())
            self.seen, self.calls = 0, 0

        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            self.calls += 1
            return loss_fn(model, batch)

    model, trainer = Net(), Trainer()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY | {"accumulate": 2})
    loss = overflowing(trainer.loss, lambda: guard.step_index in {0, 5})
    for _ in range(16):
        guard.step(loss, next(trainer.data))
        trainer.seen += 1
    assert (trainer.seen, trainer.calls) == (16, 16)
    assert "be restored" not in caplog.text


def test_no_graph_of_an_earlier_step_is_kept_alive() -> None:
    model, alive = Net(), list[int]()

    graphs: list[Any] = []

    def loss(model: Any, batch: Any) -> Tensor:
        y = model.linear(batch)
        model.attention = y.softmax(-1)
        graphs.append(weakref.ref(model.attention))
        alive.append(sum(graph() is not None for graph in graphs))
        return y.float().square().mean()

    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    for _ in range(11):
        guard.step(loss, torch.ones(1, WIDTH))
    assert alive[10] == alive[9] == 1, alive


def test_containers_that_are_gone_are_not_kept() -> None:
    model, holder = Net(), SimpleNamespace(outputs={})
    made: list[Any] = []

    class Outputs(dict[str, Any]):
        pass

    def loss(model: nn.Module, batch: Any) -> Tensor:
        holder.outputs["y"] = batch
        return loss_fn(model, batch)

    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    for _ in range(30):
        holder.outputs = Outputs()
        made.append(weakref.ref(holder.outputs))
        guard.step(loss, torch.ones(1, WIDTH))
    assert sum(ref() is not None for ref in made) <= 3


def test_looks_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    guard = Guard(model, SGD(model.parameters(), lr=0.1), RETRY)
    state = guard._stepper.step_state
    looks: list[int] = []
    begin = state._begin_look

    def noted() -> Any:
        looks.append(guard.step_index)
        return begin()

    monkeypatch.setattr(state, "_begin_look", noted)
    for _ in range(40):
        guard.step(loss_fn, torch.ones(1, WIDTH))
    assert looks == [0, 1, 3, 6, 11, 19, 32]


def test_the_page_shows_this_table() -> None:
    rows = [f"| {kind.text} | {kind.outcome} |" for kind in KINDS.values()]
    assert "\n".join(rows) in PAGE.read_text("utf-8")
