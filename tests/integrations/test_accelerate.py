"""Accelerate's own loop against the same loop with the guard, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker

from halfguard.errors import UsageError
from halfguard.integrations.accelerate import attach
from halfguard.records import Cause
from tests.integrations.accelerate_runs import (
    INIT_SCALE,
    RETRY,
    SKIP,
    Loop,
    accelerator,
    batches,
    two_optimizers,
)
from tests.support.models import differences
from tests.support.pairs import parametrize_pairs

# Accumulation, the largest norm, and whether the optimizer is fused.
loops = parametrize_pairs(accumulate=[1, 4], max_norm=[None, 0.5], fused=[False, True])


@pytest.fixture(autouse=True)
def _fresh_accelerate(monkeypatch: pytest.MonkeyPatch, seed: None) -> Any:
    """Accelerate keeps the first accelerator's precision for all that follow."""
    make = Loop.__post_init__

    def make_fresh(loop: Loop) -> None:
        reset()
        make(loop)

    monkeypatch.setattr(Loop, "__post_init__", make_fresh)
    reset()
    yield
    reset()


def reset() -> None:
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


@loops
def test_a_healthy_run_is_accelerates_own(
    accumulate: int, max_norm: float | None, fused: bool
) -> None:
    how: dict[str, Any] = {"accumulate": accumulate, "max_norm": max_norm, "fused": fused}
    stock = Loop(**how).fit(batches(8))
    for repeatable in (True, False):
        guarded = Loop(RETRY, repeatable=repeatable, **how).fit(batches(8))
        assert guarded.plain.dtypes == stock.plain.dtypes == {torch.float16}
        assert not differences(stock.state(), guarded.state())
        assert stock.losses == guarded.losses
        assert guarded.accelerator.scaler.get_scale() == stock.accelerator.scaler.get_scale()
        assert guarded.counts.applied == 8 // accumulate


@loops
def test_if_every_step_is_retried_the_run_is_accelerates_own_in_fp32(
    accumulate: int, max_norm: float | None, fused: bool
) -> None:
    how: dict[str, Any] = {
        "accumulate": accumulate,
        "max_norm": max_norm,
        "fused": fused,
        "overflow": True,
    }
    fp32 = Loop(precision="no", **how).fit(batches(8))
    guarded = Loop(RETRY, **how).fit(batches(8))
    assert guarded.plain.dtypes == {torch.float16, torch.float32}  # half first, then the repetition
    assert guarded.counts.retried == 8 // accumulate
    assert not differences(fp32.state(), guarded.state())


@loops
def test_after_a_nan_batch_the_run_is_accelerates_own_without_it(
    accumulate: int, max_norm: float | None, fused: bool
) -> None:
    how: dict[str, Any] = {"accumulate": accumulate, "max_norm": max_norm, "fused": fused}
    data, extra = batches(3 * accumulate), batches(accumulate, nan=accumulate - 1, seed=9)
    stock = Loop(**how)
    # The generator of dropout moves on in the skipped step: the run without it draws the same numbers.
    stock.fit(data[:accumulate])
    for _ in range(accumulate):
        torch.nn.functional.dropout(torch.ones(4, 16, dtype=torch.float16), 0.1)
    stock.fit(data[accumulate:])
    for repeatable in (True, False):
        guarded = Loop(RETRY, repeatable=repeatable, **how)
        guarded.fit([*data[:accumulate], *extra, *data[accumulate:]])
        assert guarded.counts.skipped == {Cause.BAD_BATCH: 1}
        kept = guarded.state()
        assert kept["rates"][0] == kept["rates"].pop(1)  # held in the skipped step
        assert not differences(stock.state(), kept)
        assert guarded.accelerator.scaler.get_scale() == INIT_SCALE


@pytest.mark.parametrize("fused", [False, True])
def test_what_accelerate_alone_makes_of_nan_batches(fused: bool) -> None:
    """The table in docs/how-to/accelerate.md."""
    data = batches(6)
    for index in (2, 3, 4):
        data[index]["x"][0, 0] = torch.nan
    stock, guarded = Loop(fused=fused).fit(data), Loop(RETRY, fused=fused).fit(data)
    assert stock.plain.norm.running_mean is not None
    assert guarded.plain.norm.running_mean is not None
    assert stock.plain.norm.running_mean.isnan().any()
    assert guarded.plain.norm.running_mean.isfinite().all()
    assert stock.accelerator.scaler.get_scale() == INIT_SCALE / 8
    assert guarded.accelerator.scaler.get_scale() == INIT_SCALE
    # A fused optimizer is called though its step is skipped: the schedule moves on.
    assert stock.scheduler.scheduler.last_epoch == (6 if fused else 3)
    assert guarded.scheduler.scheduler.last_epoch == 3


def test_an_overflow_is_lost_by_accelerate_and_skipped_without_a_repeat() -> None:
    stock = Loop(overflow=True).fit(batches(3))
    skipped = Loop(RETRY, overflow=True, repeatable=False).fit(batches(3))
    initial = Loop().state()["model"]
    assert not differences(initial["last.weight"], stock.state()["model"]["last.weight"])
    assert stock.plain.norm.running_mean is not None
    assert not stock.plain.norm.running_mean.isfinite().all()
    assert not differences(
        {k: v for k, v in initial.items() if "tracked" not in k},
        {k: v for k, v in skipped.state()["model"].items() if "tracked" not in k},
    )


def test_the_second_optimizer_is_right_after_the_first_overflowed() -> None:
    (step, expected), _ = two_optimizers(None, boost=1e38)
    torch.testing.assert_close(step, 2 * expected, rtol=1e-2, atol=1e-4)  # twice too large
    reset()
    (step, expected), attached = two_optimizers(SKIP, boost=1e38)
    torch.testing.assert_close(step, expected, rtol=1e-2, atol=1e-4)
    assert sum(attached.hosted.summary().skipped.values()) == 1


def test_bf16_and_fp32_are_guarded_before_clipping(tmp_path: Path) -> None:
    for precision in ("bf16", "no"):
        how: dict[str, Any] = {"precision": precision, "max_norm": 0.01}
        stock, guarded = Loop(**how).fit(batches(6)), Loop(RETRY, **how).fit(batches(6))
        assert not differences(stock.state(), guarded.state())
        last = guarded.attached.hosted.last_step  # type: ignore[union-attr]
        assert last is not None
        assert last.grad_norm > 0.02  # and not the norm after clipping
        stock.accelerator.save_state(tmp_path / precision)  # without a scaler's state
        again = Loop(RETRY, **how)
        again.accelerator.load_state(tmp_path / precision)
        assert not differences(stock.state()["model"], again.state()["model"])
        assert again.accelerator.scaler is again.attached.scaler  # type: ignore[union-attr]


@pytest.mark.parametrize("before_the_first_step", [True, False])
def test_stopped_and_resumed_is_the_uninterrupted_run(
    tmp_path: Path, before_the_first_step: bool
) -> None:
    data, cut = batches(16, nan=3), 0 if before_the_first_step else 8
    whole = Loop(RETRY, accumulate=2).fit(data)
    first = Loop(RETRY, accumulate=2).fit(data[:cut])
    first.accelerator.save_state(tmp_path)
    second = Loop(RETRY, accumulate=2)
    second.accelerator.load_state(tmp_path)
    second.fit(data[cut:])
    assert second.counts.skipped == {Cause.BAD_BATCH: 1}  # of the run before, too
    assert second.accelerator.scaler.state_dict() == whole.accelerator.scaler.state_dict()
    assert whole.rates == first.rates + second.rates
    second.rates = whole.rates
    assert not differences(whole.state(), second.state())


@pytest.mark.parametrize(("before", "after"), [(None, RETRY), (RETRY, None)])
def test_states_go_from_the_stock_scaler_and_back(
    tmp_path: Path, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> None:
    data = batches(8)
    whole = Loop().fit(data)
    first = Loop(before).fit(data[:5])
    first.accelerator.save_state(tmp_path)
    second = Loop(after)
    second.accelerator.load_state(tmp_path)
    second.fit(data[5:])
    assert not differences(whole.state()["model"], second.state()["model"])
    assert not differences(whole.state()["optimizer"], second.state()["optimizer"])
    stock, state = (loop.accelerator.scaler.state_dict() for loop in (whole, second))
    assert {name: state[name] for name in stock} == stock


class Rows(GeneralTracker):  # type: ignore[misc]
    """A tracker that keeps what it gets."""

    name = "rows"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, Any]]] = []

    @property
    def tracker(self) -> Any:
        return self.rows

    def store_init_configuration(self, values: Any) -> None:
        pass

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.rows.append((step, values))


@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_a_nan_batch_without_a_loss_scale_is_skipped_too(precision: str) -> None:
    data = batches(4, nan=1)
    stock, guarded = (Loop(guard, precision).fit(data) for guard in (None, RETRY))
    assert stock.plain.last.weight.isnan().all()
    assert all(value.isfinite().all() for value in guarded.plain.state_dict().values())
    assert guarded.scheduler.scheduler.last_epoch == 3


def test_a_skipped_step_is_in_the_tracker_and_the_journal(tmp_path: Path) -> None:
    rows = Rows()
    loop = Loop(RETRY, run_dir=tmp_path, given={"log_with": rows})
    loop.accelerator.init_trackers("run")
    loop.fit(batches(5, nan=2))
    loop.accelerator.end_training()
    assert [step for step, _ in rows.rows] == [0, 1, 2, 3, 4]
    assert [row["halfguard/applied"] for _, row in rows.rows] == [1, 1, 0, 1, 1]
    assert (tmp_path / "steps.jsonl").exists()
    assert len(list((tmp_path / "incidents").iterdir())) == 1


def test_memory_is_freed_and_preparing_again_makes_a_new_guard() -> None:
    loop = Loop(RETRY).fit(batches(2))
    assert loop.attached is not None
    old = loop.attached.hosted
    loop.accelerator.free_memory()
    with pytest.raises(UsageError, match="guard does not exist before"):
        _ = loop.attached.hosted
    loop.model, loop.optimizer = loop.accelerator.prepare(loop.model, loop.optimizer)
    loop.fit(batches(2))
    assert loop.attached.hosted is not old
    assert loop.counts.applied == 2


def test_evaluation_begins_no_step() -> None:
    loop = Loop(RETRY)
    loop.model.eval()
    loop.model(batches(1)[0]["x"])
    loop.model.train()
    with torch.no_grad():
        loop.model(batches(1)[0]["x"])
    with pytest.raises(UsageError, match="guard does not exist before"):
        loop.attached.hosted  # type: ignore[union-attr]  # noqa: B018


def test_attaching_too_late_or_twice_is_refused() -> None:
    loop = Loop()
    with pytest.raises(UsageError, match="has already prepared an optimizer"):
        attach(loop.accelerator, RETRY)
    reset()
    hub = accelerator()
    attach(hub, RETRY)
    with pytest.raises(UsageError, match="already has a guard"):
        attach(hub, RETRY)


def test_fp16_on_a_cpu_is_told_to_be_fp32(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(RETRY, precision="fp16")
    loop.accelerator.native_amp = False  # as Accelerate leaves it
    loop.fit(batches(1))
    assert "trains in FP32" in caplog.text
