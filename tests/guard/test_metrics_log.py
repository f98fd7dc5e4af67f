"""``Guard(log=...)``: the steps that are logged, the numbers, and what logging never does."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from halfguard.errors import TrainingHaltedError, UsageError
from halfguard.guard.guard import Guard
from halfguard.guard.hosted import HostedGuard
from halfguard.guard.metrics_log import METRICS
from halfguard.records import Cause
from tests.guard.helper import frozen, inject, same
from tests.support.counting import OpCounter
from tests.support.ranks import Ranks

GOOD, BAD = 1.0, math.nan
SMALL_SCALE: dict[str, Any] = {"scale": {"init": 8.0}}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))


def loss_fn(model: Any, batch: tuple[Tensor, float]) -> Tensor:
    loss = batch[1]
    grad = 0.5 if math.isfinite(loss) else math.nan
    return inject(model.w, loss, grad)


def overflow_fn(model: Any, batch: tuple[Tensor, float]) -> Tensor:
    return inject(model.w, GOOD, batch[1], half=True)


class Logged:
    """A guarded run whose metrics are kept in a list."""

    def __init__(
        self, config: Any = None, *, fused: bool = False, lag: int = 0, **options: Any
    ) -> None:
        self.calls: list[tuple[dict[str, float], int]] = []
        self.model = Model()
        parameters = self.model.parameters()
        self.optimizer = AdamW(parameters, fused=True) if fused else SGD(parameters, lr=0.01)
        options.setdefault("log", lambda metrics, step: self.calls.append((metrics, step)))
        self.guard = Guard(self.model, self.optimizer, config or SMALL_SCALE, **options)
        self.guard._pending.lag = lag

    def run(self, *values: float, with_loss: Any = loss_fn) -> None:
        for value in values:
            self.guard.step(with_loss, (torch.full((2,), value), value))

    @property
    def steps(self) -> list[int]:
        return [step for _, step in self.calls]

    def last(self, name: str) -> float:
        return self.calls[-1][0][f"halfguard/{name}"]


def test_every_n_steps_and_at_every_unusual_one() -> None:
    run = Logged(log_every=10)
    run.run(*[GOOD] * 13, BAD, *[GOOD] * 9)
    assert run.steps == [0, 10, 13, 20]


def test_every_call_has_all_documented_names_as_plain_floats() -> None:
    run = Logged(log_every=1)
    run.run(GOOD, BAD)
    for metrics, step in run.calls:
        assert tuple(metrics) == tuple(METRICS)
        assert {type(value) for value in metrics.values()} == {float}
        assert metrics["halfguard/step"] == step


def test_the_numbers_of_a_skipped_step() -> None:
    run = Logged(log_every=10)
    run.run(GOOD, GOOD, GOOD, BAD)
    assert run.steps == [0, 3]
    assert math.isnan(run.last("loss"))
    assert run.last("applied") == run.last("halted") == 0
    assert run.last("scale") == 8
    assert run.last("applied_steps") == 3
    assert run.last("skipped_steps") == run.last(f"skipped/{Cause.BAD_BATCH}") == 1
    assert run.last(f"skipped/{Cause.GRADIENT_OVERFLOW}") == 0


def test_a_changed_scale_is_logged_with_the_first_step_that_uses_it() -> None:
    run = Logged({"scale": {"init": 8.0, "growth_interval": 4}}, log_every=100)
    run.run(*[GOOD] * 6)
    assert run.steps == [0, 4]
    assert run.last("scale") == 16
    run = Logged({"scale": {"init": 65536.0}}, log_every=100)
    run.run(0.25, 1.5, 0.25, with_loss=overflow_fn)  # 1.5 * 65536 is not in FP16
    assert run.steps == [0, 1, 2]
    assert [metrics["halfguard/scale"] for metrics, _ in run.calls] == [65536, 65536, 32768]
    assert run.last("scale_reductions") == 1


def test_a_retried_step_is_logged_as_applied_with_its_fp32_loss() -> None:
    run = Logged({"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}, log_every=100)
    values = [GOOD, math.inf]

    def loss(model: Any, _: Any) -> Any:
        in_half = torch.is_autocast_enabled("cpu")
        return inject(model.w, values[run.guard.step_index] if in_half else 3.0, 0.5)

    run.run(GOOD, GOOD, with_loss=loss)
    assert run.steps == [0, 1]
    assert (run.last("loss"), run.last("applied"), run.last("retried_steps")) == (3, 1, 1)


def test_a_halt_is_logged_before_it_raises() -> None:
    run = Logged({"scale": {"init": 8.0}, "skip": {"on_nonfinite": "raise"}})
    with pytest.raises(TrainingHaltedError):
        run.run(GOOD, BAD)
    assert run.steps == [0, 1]
    assert (run.last("halted"), run.last("applied")) == (1, 0)


def test_a_rollback_is_logged() -> None:
    recovery = {"every": 2, "max_rollbacks": 1}
    run = Logged({"scale": {"init": 8.0}, "skip": {"max_consecutive": 2}, "recovery": recovery})
    run.run(*[GOOD] * 6, BAD, BAD)
    assert run.steps == [0, 6, 7]
    assert run.last("rolled_back_steps") == 1


def test_counts_of_a_resumed_run_go_on_while_those_of_the_process_begin_at_zero() -> None:
    first = Logged()
    first.run(GOOD, BAD)
    second = Logged(log_every=1)
    second.guard.load_state_dict(first.guard.state_dict())
    second.run(BAD)
    assert second.steps == [2]
    assert second.last("skipped_steps") == 2
    assert second.guard.counts.steps == 1
    assert second.guard.counts.skipped == {Cause.BAD_BATCH: 1}


def test_an_error_of_the_tracker_is_told_once_and_training_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def broken(metrics: dict[str, float], step: int) -> None:
        calls.append(step)
        raise ConnectionError("no route to the tracker")

    bare, run = Logged(log=None), Logged(log=broken, log_every=1)
    bare.run(GOOD, BAD, GOOD)
    caplog.clear()
    run.run(GOOD, BAD, GOOD)
    assert calls == [0, 1, 2]
    told = [r.getMessage() for r in caplog.records if "no route" in r.getMessage()]
    assert len(told) == 1
    assert "ConnectionError" in told[0]
    assert "Training continues" in told[0]
    assert same(frozen(bare.model.state_dict()), frozen(run.model.state_dict()))
    assert bare.guard.summary() == run.guard.summary()


def test_ctrl_c_in_the_tracker_is_no_error_of_the_tracker() -> None:
    def interrupted(metrics: dict[str, float], step: int) -> None:
        raise KeyboardInterrupt

    run = Logged(log=interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.run(GOOD)
    run.guard._recorder._metrics_log = None
    run.run(GOOD)  # the interrupted step was complete: nothing is half applied
    assert run.guard.summary().applied == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"log": "wandb"}, "log must be a function"),
        ({"log": {}}, "log must be a function"),
        ({"log_every": 0}, "log_every must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_logged_to_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Logged(**wrong)


@pytest.mark.on_standin
@pytest.mark.usefixtures("device", "seed")
@pytest.mark.parametrize("fused", [False, True])
def test_a_logged_healthy_step_asks_nothing_more_of_the_device(fused: bool) -> None:
    ops, syncs = [], []
    for options in ({"log": None}, {"log_every": 1}):
        run = Logged(fused=fused, **options)
        run.guard._pending.lag = run.guard._lag
        run.run(*[GOOD] * 4)
        batch = (torch.ones(2), GOOD)
        with OpCounter() as counter:
            run.guard.step(loss_fn, batch)
        ops.append(counter.ops)
        syncs.append(counter.host_syncs)
        assert len(run.calls) >= (0 if options.get("log_every") is None else 3)
    assert ops[0] == ops[1]
    assert syncs[0] == syncs[1] == int(not fused)


def test_rows_that_are_read_late_are_logged_late_under_their_own_step() -> None:
    run = Logged(fused=True, lag=2, log_every=100)
    run.run(GOOD, GOOD, BAD, GOOD)
    assert run.steps == [0]
    run.run(GOOD)
    assert run.steps == [0, 2]
    run.run(BAD)
    run.guard.close()
    assert run.steps == [0, 2, 5]


def test_before_the_first_step_there_is_nothing_to_read() -> None:
    guard = Logged().guard
    assert (guard.counts.steps, guard.last_step) == (0, None)


def test_counts_decide_nothing() -> None:
    run = Logged(fused=True, lag=2)
    run.run(GOOD, BAD, GOOD)
    assert run.guard.counts.steps == 1
    assert len(run.guard._pending._queue) == 2
    last = run.guard.last_step
    assert (last.step, last.loss, last.scale) == (0, GOOD, 8)
    assert last.grad_norm == pytest.approx(0.5 * math.sqrt(3))
    assert run.guard.summary().steps == run.guard.counts.steps == 3


def test_counts_never_fall_while_another_thread_reads_them() -> None:
    run, done, seen = Logged(log=None), threading.Event(), []

    def read() -> None:
        while not done.is_set():
            counts = run.guard.counts
            seen.append((counts.applied, sum(counts.skipped.values())))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        run.run(*[GOOD] * 4, BAD)
        run.guard.end_epoch()
    done.set()
    reader.join()
    assert len(seen) > 20
    assert seen == sorted(seen)
    assert [max(column) for column in zip(*seen, (80, 20), strict=True)] == [80, 20]
    assert (run.guard.counts.applied, run.guard.counts.skipped) == (80, {Cause.BAD_BATCH: 20})


def test_a_hosted_guard_logs_alike() -> None:
    run = Logged(log=None)
    log = run.calls.append
    guard = HostedGuard(
        run.model,
        run.optimizer,
        SMALL_SCALE,
        log=lambda metrics, step: log((metrics, step)),
        log_every=3,
    )
    for value in (GOOD, BAD, GOOD, GOOD):
        guard.begin(torch.full((2,), value))
        guard.scale(loss_fn(run.model, (torch.ones(1), value))).backward()
        guard.unscale(run.optimizer)
        guard.apply(run.optimizer)
        run.optimizer.zero_grad()
    assert run.steps == [0, 1, 3]
    assert (run.last("applied_steps"), run.last(f"skipped/{Cause.BAD_BATCH}")) == (3, 1)


def _steps_logged_here() -> list[int]:
    run = Logged(log_every=1)
    run.run(GOOD, BAD)
    return run.steps


@pytest.mark.slow
def test_rank_0_logs_alone() -> None:
    ranks = Ranks(2)
    try:
        assert ranks.run(_steps_logged_here) == [[0, 1], []]
    finally:
        ranks.close()
