"""GuardPrecision in a real Trainer, with FP16 really running: healthy, retried, skipped, resumed."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import (
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from halfguard.errors import HalfguardError, UsageError
from halfguard.integrations.lightning import GuardPrecision
from halfguard.records import Action, Cause
from tests.integrations.lightning_runs import (
    INIT_SCALE,
    RETRY,
    SKIP,
    Classifier,
    TwoOptimizers,
    batches,
    fit,
    guard_plugin,
    nan_at,
    overflow_everywhere,
    state,
    stock_plugin,
)
from tests.support.models import differences
from tests.support.pairs import parametrize_pairs

pytestmark = [pytest.mark.usefixtures("seed"), pytest.mark.filterwarnings("ignore")]


def guard_of(trainer: Trainer) -> Any:
    return trainer.precision_plugin.guard  # type: ignore[attr-defined]


# -- healthy runs


@parametrize_pairs(fused=[False, True], clip=[None, 0.5], accumulate=[1, 4])
def test_a_healthy_run_is_bitwise_lightnings_own(
    fused: bool, clip: float | None, accumulate: int
) -> None:
    how: dict[str, Any] = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    guarded = Classifier(fused=fused)
    guarded_run = fit(guarded, guard_plugin(), batches(), **how)
    assert guarded.dtypes == {torch.float16}
    assert guard_of(guarded_run).summary().applied == 12 // accumulate
    stock = Classifier(fused=fused)
    if fused and clip is not None:  # Lightning refuses; unfused has the same result
        with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
            fit(stock, stock_plugin(), batches(), **how)
        return
    stock_run = fit(stock, stock_plugin(), batches(), **how)
    assert stock.dtypes == {torch.float16}
    assert not differences(state(stock_run), state(guarded_run))


def test_manual_optimization_with_two_optimizers_is_bitwise_lightnings_own() -> None:
    stock = fit(TwoOptimizers(), stock_plugin(), batches())
    guarded = fit(TwoOptimizers(), guard_plugin(), batches())
    assert not differences(state(stock), state(guarded))
    assert guard_of(guarded).summary().applied == 24


# -- check A: every step retried


@parametrize_pairs(fused=[False, True], clip=[None, 0.5], accumulate=[1, 4])
def test_if_every_step_is_retried_the_run_is_bitwise_lightnings_fp32(
    fused: bool, clip: float | None, accumulate: int
) -> None:
    how: dict[str, Any] = {"accumulate_grad_batches": accumulate, "gradient_clip_val": clip}
    data = batches(fault=overflow_everywhere)
    fp32 = fit(Classifier(fused=fused), None, data, **how)
    module = Classifier(fused=fused)
    guarded = fit(module, guard_plugin(), data, **how)
    assert module.dtypes == {torch.float16, torch.float32}
    assert guard_of(guarded).summary().retried == 12 // accumulate
    assert not differences(state(fp32), state(guarded))


def test_gradients_that_a_hook_freezes_stay_frozen_in_a_retried_step() -> None:
    class Frozen(Classifier):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            weight = next(self.parameters())
            assert weight.grad is not None
            weight.grad[:, 0] = 0.0

    data = batches(4, fault=overflow_everywhere)
    guarded = fit(Frozen(), guard_plugin(), data)
    assert guard_of(guarded).summary().retried == 4
    assert not differences(state(fit(Frozen(), None, data)), state(guarded))


def test_the_last_epoch_of_stochastic_weight_averaging_runs() -> None:
    """It renews BatchNorm's statistics without backward; at its end, Lightning alone steps once more."""
    stock, guarded = (
        fit(
            Classifier(dropout=0.0),
            plugin,
            batches(4),
            max_epochs=4,
            callbacks=[StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2)],
        )
        for plugin in (stock_plugin(), guard_plugin())
    )
    own, renewed = (
        {name: value for name, value in state(one)["model"].items() if "running" in name}
        for one in (stock, guarded)
    )
    assert len(renewed) == 2
    assert not differences(own, renewed)
    assert guard_of(guarded).summary().applied == 16


def test_a_scheduler_with_a_frequency_does_not_lose_an_interval_to_one_skipped_step() -> None:
    class Seldom(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = SGD(self.parameters(), lr=0.5)
            scheduler = StepLR(optimizer, 1, 0.5)
            how = {"scheduler": scheduler, "interval": "step", "frequency": 4}
            return {"optimizer": optimizer, "lr_scheduler": how}

    guarded = fit(Seldom(), guard_plugin(), batches(12, fault=nan_at(3, 7, 11)))
    assert guard_of(guarded).summary().applied == 9
    assert guarded.optimizers[0].param_groups[0]["lr"] == 0.5 * 0.5**3


def test_a_retried_step_logs_once() -> None:
    class Logged(Classifier):
        names: ClassVar[list[str]] = []

        def log(self, name: str, *args: Any, **kwargs: Any) -> None:
            if name == "train_loss":
                self.names.append(name)

    module = Logged()
    trainer = fit(module, guard_plugin(), batches(2, fault=overflow_everywhere))
    assert module.steps == 4
    assert module.names == ["train_loss"] * 2
    assert guard_of(trainer).last.action is Action.RETRY


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_retried_step_logs_the_values_of_its_repeat(accumulate: int) -> None:
    data = batches(4, fault=overflow_everywhere)
    how: dict[str, Any] = {"accumulate_grad_batches": accumulate, "logger": False}
    fp32 = fit(Classifier(), None, data, **how)
    guarded = fit(Classifier(), guard_plugin(), data, **how)
    assert guard_of(guarded).summary().retried == 4 // accumulate
    for name in ("train_loss_step", "train_loss_epoch"):
        assert torch.equal(guarded.callback_metrics[name], fp32.callback_metrics[name])


@dataclass
class Pair:
    """A batch that is no container."""

    inputs: Any
    labels: Any


def test_a_batch_that_training_step_changes_is_put_back_before_a_retry() -> None:
    class Halving(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            batch.inputs = batch.inputs * 0.5
            return super().training_step((batch.inputs, batch.labels), index)

    class Reading(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step((batch.inputs * 0.5, batch.labels), index)

    def pairs() -> list[Any]:
        return [Pair(*batch) for batch in batches(6, fault=overflow_everywhere)]

    guarded = [fit(module, guard_plugin(), pairs()) for module in (Halving(), Reading())]
    assert guard_of(guarded[0]).summary().retried == 6
    assert not differences(*map(state, guarded))


# -- check B: one NaN batch


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("how", ["skip", "retry_fp32"])
def test_one_nan_batch_leaves_the_run_without_it(how: str, accumulate: int) -> None:
    data = batches(12, nan_at(accumulate))
    window = set(range(accumulate, 2 * accumulate))
    without = [batch for index, batch in enumerate(batches(12)) if index not in window]
    # No dropout: the step that is left out draws random numbers, and the run without it does not.
    stock = fit(Classifier(dropout=0), stock_plugin(), without, accumulate_grad_batches=accumulate)
    config = SKIP | {"skip": {"on_nonfinite": how}}
    guarded = fit(
        Classifier(dropout=0), guard_plugin(config), data, accumulate_grad_batches=accumulate
    )
    assert not differences(state(stock), state(guarded))
    assert guard_of(guarded).summary().skipped == {Cause.BAD_BATCH: 1}


# -- what else a Trainer does


def test_a_training_step_that_returns_none_is_left_out() -> None:
    class Picky(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 5 else loss

    stock = fit(Picky(dropout=0), stock_plugin(), batches())
    guarded = fit(Picky(dropout=0), guard_plugin(), batches())
    stock_weights, weights = state(stock)["model"], state(guarded)["model"]
    trained = [name for name in weights if "running" not in name and "tracked" not in name]
    assert not differences({n: stock_weights[n] for n in trained}, {n: weights[n] for n in trained})


def test_a_run_halts_with_the_batch_in_the_error() -> None:
    config = SKIP | {"skip": {"max_consecutive": 3}}
    with pytest.raises(HalfguardError, match="batch 4"):
        fit(Classifier(), guard_plugin(config), batches(12, nan_at(2, 3, 4)))


def test_a_rollback_restores_weights_and_scheduler(tmp_path: Path) -> None:
    config = SKIP | {
        "skip": {"max_consecutive": 2},
        "recovery": {"every": 2},
    }
    trainer = fit(Classifier(), guard_plugin(config, run_dir=tmp_path), batches(12, nan_at(7, 8)))
    summary = guard_of(trainer).summary()
    assert summary.rollbacks == 1
    assert all(torch.isfinite(p).all() for p in trainer.lightning_module.parameters())
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    assert scheduler.last_epoch < 12 - 2


def test_loggers_and_progress_bar_are_told(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    plugin = guard_plugin(run_dir=tmp_path / "run")
    trainer = fit(
        Classifier(),
        plugin,
        batches(12, nan_at(3)),
        logger=logger,
        log_every_n_steps=1,
        callbacks=[LearningRateMonitor("step")],
    )
    assert trainer.progress_bar_metrics["halfguard/epoch_skipped"] == 1.0
    assert trainer.callback_metrics["halfguard/epoch_scale"] == INIT_SCALE
    assert trainer.callback_metrics["halfguard/epoch_retried"] == 0.0
    written = (Path(logger.log_dir) / "metrics.csv").read_text()
    rows = list(csv.DictReader(written.splitlines()))
    skipped = [row for row in rows if row["halfguard/applied"] == "0.0"]
    assert [row["halfguard/skipped/bad_batch"] for row in skipped] == ["1.0"]
    assert "batch 3" in (tmp_path / "run" / "steps.jsonl").read_text()
    assert len(list((tmp_path / "run" / "incidents").iterdir())) == 1
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    assert not [c for c in callbacks if type(c).__name__ == "GuardCallback"]


# -- checkpoints


def saving(folder: Path) -> dict[str, Any]:
    every = ModelCheckpoint(folder, save_last=True, every_n_train_steps=1, save_top_k=0)
    return {"enable_checkpointing": True, "callbacks": [every], "default_root_dir": folder}


@patch.multiple("halfguard.guard.spikes", WINDOW=4, WARM_UP=2)
def test_a_stopped_run_resumes_bitwise(tmp_path: Path) -> None:
    config: dict[str, Any] = RETRY | {"spike": {}}
    data = batches(12, nan_at(3))
    whole = fit(Classifier(dropout=0), guard_plugin(config), data, max_epochs=2)
    fit(Classifier(dropout=0), guard_plugin(config), data, max_epochs=1, **saving(tmp_path))
    resumed = fit(
        Classifier(dropout=0),
        guard_plugin(config),
        data,
        max_epochs=2,
        ckpt_path=tmp_path / "last.ckpt",
    )
    assert not differences(state(whole), state(resumed))
    assert not differences(guard_of(whole).state_dict(), guard_of(resumed).state_dict())


@pytest.mark.parametrize("first", ["stock", "guarded"])
def test_a_checkpoint_is_taken_over_and_handed_back(first: str, tmp_path: Path) -> None:
    makers: dict[str, Callable[[], Any]] = {"stock": stock_plugin, "guarded": guard_plugin}
    second = "guarded" if first == "stock" else "stock"
    whole = fit(Classifier(), stock_plugin(), batches(), max_epochs=2)
    before = fit(Classifier(), makers[first](), batches(), **saving(tmp_path))
    before.precision_plugin.scaler.update(256.0)  # type: ignore[attr-defined]
    before.save_checkpoint(tmp_path / "end.ckpt")
    after = fit(
        Classifier(), makers[second](), batches(), max_epochs=2, ckpt_path=tmp_path / "end.ckpt"
    )
    assert after.precision_plugin.scaler.get_scale() == 256.0  # type: ignore[attr-defined]
    # Same data and seed; the scale is a power of two, so 256 and 1024 give the same gradients.
    assert after.global_step == whole.global_step == 24


def test_a_second_fit_keeps_the_scale() -> None:
    plugin = guard_plugin()
    module = Classifier()
    trainer = fit(module, plugin, batches())
    plugin.scaler.update(64.0)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    assert plugin.scaler.get_scale() == 64.0


# -- configuration


def test_a_clip_that_nobody_applies_is_told(caplog: pytest.LogCaptureFixture) -> None:
    fit(Classifier(), guard_plugin("fp16_safe"), batches(2))
    assert "gradient_clip_val=5, accumulate_grad_batches=2" in caplog.text
    caplog.clear()
    how: dict[str, Any] = {"gradient_clip_val": 5.0, "accumulate_grad_batches": 2}
    fit(Classifier(), guard_plugin("fp16_safe"), batches(2), **how)
    assert "pass this to the Trainer" not in caplog.text


def test_fp16_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="keeps 16-bit weights"):
        GuardPrecision("native_fp16")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", torch.bfloat16), ("fp32", torch.float32)]
)
def test_other_precisions_run_guarded_too(precision: str, dtype: torch.dtype) -> None:
    module = Classifier()
    trainer = fit(module, guard_plugin({"precision": precision}), batches(4, nan_at(1)))
    assert module.dtypes == {dtype}
    assert guard_of(trainer).summary().skipped == {Cause.BAD_BATCH: 1}


def test_validation_alone_needs_no_guard() -> None:
    class Validated(Classifier):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.dtypes.add(self.net(batch[0]).dtype)

    module = Validated()
    trainer = Trainer(
        plugins=guard_plugin(), accelerator="cpu", logger=False, enable_progress_bar=False
    )
    trainer.validate(module, torch.utils.data.DataLoader(batches(2), batch_size=None))  # type: ignore[arg-type]
    assert module.dtypes == {torch.float16}


# -- the same faults, stock and guarded: the table in docs/how-to/lightning.md


def test_table_batchnorm_and_visible_loss_after_a_nan_batch() -> None:
    modules = Classifier(), Classifier()
    stock, guarded = (
        fit(module, plugin, batches(12, nan_at(3)))
        for module, plugin in zip(modules, (stock_plugin(), guard_plugin()), strict=True)
    )
    finite = [torch.isfinite(module.net[1].running_mean).all() for module in modules]  # type: ignore[arg-type]
    assert finite == [False, True]
    means = [t.callback_metrics["train_loss_epoch"] for t in (stock, guarded)]
    assert all(mean.isnan() for mean in means)  # Lightning's mean, guard or not
    assert guarded.callback_metrics["halfguard/epoch_skipped"] == 1.0


def test_table_scheduler_steps_after_three_skips() -> None:
    stock = fit(Classifier(), stock_plugin(), batches(12, nan_at(9, 10, 11)))
    guarded = fit(Classifier(), guard_plugin(), batches(12, nan_at(9, 10, 11)))
    steps = [t.lr_scheduler_configs[0].scheduler.last_epoch for t in (stock, guarded)]
    assert steps == [12, 9]


def test_table_scale_after_a_nan_batch() -> None:
    stock = fit(Classifier(), stock_plugin(), batches(12, nan_at(11)))
    guarded = fit(Classifier(), guard_plugin(), batches(12, nan_at(11)))
    scales = [t.precision_plugin.scaler.get_scale() for t in (stock, guarded)]  # type: ignore[attr-defined]
    assert scales == [INIT_SCALE / 2, INIT_SCALE]


def test_table_second_optimizers_gradients_after_the_first_overflowed() -> None:
    healthy = TwoOptimizers()
    fit(healthy, stock_plugin(), batches(2))
    stock, guarded = TwoOptimizers(boost=1e4), TwoOptimizers(boost=1e4)
    fit(stock, stock_plugin(), batches(2))
    trainer = fit(guarded, guard_plugin(SKIP), batches(2))
    assert guard_of(trainer).summary().skipped == {Cause.GRADIENT_OVERFLOW: 1}
    torch.testing.assert_close(stock.seen[1], healthy.seen[1] * 2, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(guarded.seen[1], healthy.seen[1], rtol=1e-2, atol=1e-5)


def test_manual_clipping_clips_unscaled_gradients() -> None:
    class Clipped(TwoOptimizers):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.clip_gradients(optimizer, gradient_clip_val=1e-3, gradient_clip_algorithm="norm")

    module = Clipped()
    fit(module, guard_plugin(), batches(2))
    assert module.seen[0].norm() < 1.001e-3
    assert module.seen[0].norm() > 0.5e-3
