"""A watched run: what it shows, and that nothing else changes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from halfguard import Guard
from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig
from halfguard.guard.metrics_log import METRICS, WATCH_METRICS
from halfguard.guard.watching.swallowed import Alarm
from halfguard.guard.watching.watching import Sampling, sampled_step
from halfguard.journal import read_rows
from halfguard.records import parse_journal_row
from halfguard.records.watch import WatchRow
from tests.support.cases import each
from tests.support.devices import place
from tests.support.models import MODELS, batches, differences, loss_fn, make

SCALE = {"init": 256.0}
EVERY = 4


class RmsNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.half()
        mean = (half * half).mean(-1, keepdim=True)  # <- the fault
        return half / torch.sqrt(mean + 1e-5)


class Classifier(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), RmsNorm(), nn.Linear(32, 4)
        self.checkpointed = checkpointed
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.first(x)
        if self.checkpointed:
            hidden = checkpoint(self.norm, hidden, use_reentrant=False)
        else:
            hidden = self.norm(hidden)
        return self.last(F.dropout(hidden, 0.1))


def fault_line() -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith("# <- the fault"))


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def loud(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 16, generator=generator)
    x[::4] *= 1000
    return x, torch.randint(4, (16,), generator=generator)


def guarded(model: nn.Module, optimizer: Optimizer | None = None, **options: Any) -> Guard:
    log = {name: options.pop(name) for name in ("log", "log_every", "run_dir") if name in options}
    config = {"watch": {"every": EVERY}, "scale": SCALE, **options}
    return Guard(model, optimizer or AdamW(model.parameters(), lr=1e-2), config, **log)


def watched_rows(guard: Guard) -> list[WatchRow]:
    rows = guard._recorder.journal.recent_rows(100)
    return [row for row in rows if isinstance(row, WatchRow)]


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# -- what a sampled step shows


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_swallowed_overflow_is_announced_once_with_its_line(
    accumulate: int, checkpointed: bool, seed: object, caplog: pytest.LogCaptureFixture
) -> None:
    model = Classifier(checkpointed=checkpointed)
    guard = guarded(model, accumulate=accumulate)
    for step in range(20 * accumulate):
        guard.step(classify, loud(step))
    [alarm] = guard.watching.alarms
    assert (alarm.finding.file, alarm.finding.line) == (__file__, fault_line())
    assert alarm.finding.module == "norm"
    assert alarm.gradient_error > 0.02
    told = [w for row in watched_rows(guard) for w in row.warnings]
    assert [one.place for one in told] == [f"{__file__}:{fault_line()}"]
    assert sum("swallowed" in text for text in caplog.messages) == 1
    assert model.calls == 20 * accumulate  # the audit's own calls are not counted


def test_an_alarm_comes_between_two_steps_with_its_batches(seed: object) -> None:
    model = Classifier()
    guard, found = guarded(model), list[tuple[tuple[Alarm, ...], int, bool]]()
    assert guard.watching is not None

    def on_alarm(alarms: tuple[Alarm, ...], given: Any) -> None:
        open_step = bool(guard._batches.micro_batches)
        found.append((alarms, len(given.micro_batches), open_step))

    guard.watching.on_alarm = on_alarm
    for step in range(10):
        guard.step(classify, loud(step))
    [(alarms, count, open_step)] = found
    assert alarms == tuple(guard.watching.alarms)
    assert (count, open_step) == (1, False)


@pytest.mark.on_standin
@pytest.mark.usefixtures("device")
def test_headroom_is_measured_against_the_real_magnitudes(seed: object) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8, bias=False), nn.Linear(8, 2, bias=False)]
    model = place(nn.Sequential(*layers))
    guard = guarded(model, SGD(model.parameters(), lr=0.0))
    batch = place((torch.randn(4, 8), torch.randint(2, (4,))))
    for _ in range(EVERY):
        guard.step(classify, batch)
    [row] = watched_rows(guard)
    with torch.autocast(batch[0].device.type, torch.float16):
        largest = F.linear(batch[0], layers[0].weight).abs().amax().item()
    layer = {one.module: one for one in row.layers}["0"]
    seen = torch.log2(torch.tensor(65504 / largest)).item()
    weights = layers[0].weight.abs().amax().half().item()  # cast to half in the same module
    inputs = batch[0].abs().amax().half().item()
    tightest = min(seen, *(torch.log2(torch.tensor(65504 / v)).item() for v in (weights, inputs)))
    assert layer.forward == pytest.approx(tightest, abs=0.02)
    assert row.scale == SCALE["init"]


def test_the_loop_with_its_own_forward_pass_is_watched_too(seed: object) -> None:
    model = make("transformer")
    guard = guarded(model)
    for batch in batches(8):
        with guard.autocast():
            loss = loss_fn(model, batch)
        guard.backward(loss)
        guard.update()
    rows = watched_rows(guard)
    assert [row.step for row in rows] == [sampled_step(0, EVERY), sampled_step(1, EVERY)]
    assert all(0 < row.forward < 40 and 0 < row.backward < 40 for row in rows)


def test_a_refused_step_gives_no_sample_and_the_next_one_does(seed: object) -> None:
    model = make("mlp-batchnorm")
    guard, due = guarded(model), sampled_step(0, EVERY)
    for step, (x, y) in enumerate(batches(EVERY + 2)):
        guard.step(loss_fn, (x * torch.nan, y) if step == due else (x, y))
    assert watched_rows(guard)[0].step == due + 1


# -- journal and log


def test_the_journal_has_the_rows_and_older_readers_leave_them_out(
    tmp_path: Path, seed: object
) -> None:
    model = make("transformer")
    guard = guarded(model, run_dir=tmp_path)
    for batch in batches(9):
        guard.step(loss_fn, batch)
    guard.close()
    rows = [row for row in read_rows(tmp_path / "steps.jsonl") if isinstance(row, WatchRow)]
    assert [row.step for row in rows] == [sampled_step(i, EVERY) for i in range(2)]
    line = json.loads(rows[0].to_json())
    assert (line["kind"], line["schema_version"]) == ("watch", 1)
    assert parse_journal_row(json.dumps(line | {"kind": "a later kind"})) == "a later kind"


def test_every_call_of_log_has_the_numbers_of_the_last_sample(seed: object) -> None:
    model, calls = make("transformer"), list[dict[str, float]]()
    guard = guarded(model, log=lambda metrics, _: calls.append(metrics), log_every=100)
    for batch in batches(9):
        guard.step(loss_fn, batch)
    assert all(list(call) == [*METRICS, *WATCH_METRICS] for call in calls)
    sampled = [int(call["halfguard/watch/step"]) for call in calls[1:]]
    assert sampled == [sampled_step(0, EVERY), sampled_step(1, EVERY)]
    assert 0 < calls[-1]["halfguard/watch/forward_headroom"] < 40


def test_a_preset_can_be_watched_and_a_guard_keeps_its_watch() -> None:
    config = GuardConfig.load({"watch": {}})
    assert config.watch.every == 200
    model = make("mlp-batchnorm")
    guard = guarded(model)
    with pytest.raises(UsageError, match="watch"):
        guard.reconfigure(guard.config.model_copy(update={"watch": None}))


# -- nothing else changes


@pytest.mark.on_standin
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", MODELS)
def test_a_watched_run_is_bitwise_the_run_without(name: str, seed: object) -> None:
    states = []
    for watch in (None, {"every": EVERY}):
        torch.manual_seed(0)
        model = place(make(name))
        optimizer = AdamW(model.parameters(), lr=0.01)
        guard = Guard(model, optimizer, {"watch": watch, "scale": SCALE})
        for batch in place(batches(12)):
            guard.step(loss_fn, batch)
        states.append({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if watch:
            assert len(watched_rows(guard)) == 3
            assert hooks(model) == 0
    assert differences(*states) == []


@pytest.mark.slow
def test_compiled_code_stays_compiled(seed: object) -> None:
    model, ran = make("transformer"), list[int]()

    def backend(graph: Any, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(guard.step_index)
            return graph(*args)

        return run

    compiled: Any = torch.compile(model, backend=backend)
    guard = guarded(compiled, AdamW(model.parameters(), lr=0.01))
    for batch in batches(8):
        guard.step(loss_fn, batch)
    torch._dynamo.reset()
    assert sorted(set(ran)) == list(range(8))  # the sampled steps as well
    assert len(watched_rows(guard)) == 2


@pytest.mark.parametrize("where", ["forward", "backward", "update"])
def test_an_error_in_a_sampled_step_leaves_no_trace(where: str, seed: object) -> None:
    model, due = make("transformer"), sampled_step(0, EVERY)
    guard, data = guarded(model), batches(12)
    failing = {"now": False}

    def fragile(model: nn.Module, batch: Any) -> Tensor:
        loss = loss_fn(model, batch)
        if failing["now"] and where == "forward":
            raise RuntimeError(where)
        if failing["now"] and where == "backward":
            loss.register_hook(lambda _: 1 / 0)  # type: ignore[no-untyped-call]
        return loss

    for step in range(due + 1):
        failing["now"] = step == due
        if not failing["now"]:
            guard.step(fragile, data[step])
            continue
        if where == "update":
            guard.optimizers[0].step = lambda *_, **__: 1 / 0  # type: ignore[method-assign, assignment]
        with pytest.raises((RuntimeError, ZeroDivisionError)):
            guard.step(fragile, data[step])
    assert hooks(model) == 0
    assert not guard.optimizers[0]._optimizer_step_post_hooks
    assert not guard.watching.is_sampling
    assert watched_rows(guard) == []
    if where != "update":
        failing["now"] = False
        guard.step(fragile, data[due])
        assert [row.step for row in watched_rows(guard)] == [due]


# -- one step of each interval, at a place that depends on nothing but the interval


@each("every", [1, 2, 7, 200])
def test_each_interval_has_one_sampled_step(every: int) -> None:
    sampling, found = Sampling(every), []
    for step in range(50 * every):
        if sampling.is_due(step):
            found.append(step)
            sampling.done(step)
    assert [step // every for step in found] == list(range(50))


def test_the_distance_varies() -> None:
    steps = [sampled_step(index, 200) % 200 for index in range(100)]
    assert len(set(steps)) > 60
    assert min(steps) < 20
    assert max(steps) > 180


def test_a_step_of_no_use_is_replaced_by_the_next() -> None:
    sampling, first = Sampling(10), sampled_step(0, 10)
    assert sampling.is_due(first)
    assert sampling.is_due(first + 1)
    sampling.done(first + 1)
    assert not sampling.is_due(first + 2)


def test_no_random_state_is_used() -> None:
    before = random.getstate(), torch.get_rng_state()
    first = [sampled_step(index, 50) for index in range(20)]
    random.seed(1)
    assert [sampled_step(index, 50) for index in range(20)] == first
    random.setstate(before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
