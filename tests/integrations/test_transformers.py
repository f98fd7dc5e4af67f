"""transformers' own Trainer against the same Trainer with the guard, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from halfguard.records import Cause
from tests.integrations.transformers_runs import INIT_SCALE, make, samples, state
from tests.support.docs import apply_diff, first_diff
from tests.support.models import differences
from tests.support.programs import run_python

RETRY = {"skip": {"on_nonfinite": "retry_fp32"}}
# Accumulation, the largest norm, and the optimizer: the Trainer's own choice is the fused one.
LOOPS = [
    (4, 0.5, "adamw_torch_fused"),
    *(
        pytest.param(*loop, marks=pytest.mark.slow)
        for loop in (
            (1, 0.0, "adamw_torch_fused"),
            (1, 0.5, "adamw_torch_fused"),
            (4, 0.0, "adamw_torch_fused"),
            (1, 0.5, "adamw_torch"),
        )
    ),
]
pytestmark = pytest.mark.usefixtures("seed")
loops = pytest.mark.parametrize(("accumulate", "clip", "optimizer"), LOOPS)


def settings(accumulate: int, clip: float, optimizer: str) -> dict[str, Any]:
    return {
        "gradient_accumulation_steps": accumulate,
        "max_grad_norm": clip,
        "optim": optimizer,
    }


def train(folder: Path, data: Any, **how: Any) -> Any:
    trainer = make(folder, data, **how)
    trainer.train()
    return trainer


@loops
def test_a_healthy_run_is_the_trainers_own(
    tmp_path: Path, accumulate: int, clip: float, optimizer: str
) -> None:
    how = settings(accumulate, clip, optimizer)
    stock = train(tmp_path, samples(9), **how)
    guarded = train(tmp_path, samples(9), guard=RETRY, **how)
    assert guarded.model.dtypes == {torch.float16}
    assert not differences(state(stock), state(guarded))
    assert guarded.accelerator.scaler.get_scale() == stock.accelerator.scaler.get_scale()
    assert guarded.guard.counts.applied == stock.state.global_step >= 9 // accumulate


@loops
def test_if_every_step_is_retried_the_run_is_the_trainers_own_in_fp32(
    tmp_path: Path, accumulate: int, clip: float, optimizer: str
) -> None:
    how = settings(accumulate, clip, optimizer) | {"overflow": True, "logging_steps": 2}
    fp32 = train(tmp_path, samples(9), fp16=False, **how)
    guarded = train(tmp_path, samples(9), guard=RETRY, **how)
    assert guarded.model.dtypes == {torch.float16, torch.float32}  # half first, then the repetition
    assert guarded.guard.counts.retried == fp32.state.global_step >= 9 // accumulate
    assert not differences(state(fp32), state(guarded))
    for key in ("grad_norm", "loss", "train_loss"):  # of the repeat, not of the overflow
        stock, own = (
            [row[key] for row in run.state.log_history if key in row] for run in (fp32, guarded)
        )
        assert own == pytest.approx(stock, rel=1e-6), key


@loops
def test_after_a_nan_batch_the_run_is_the_trainers_own_without_it(
    tmp_path: Path, accumulate: int, clip: float, optimizer: str
) -> None:
    how = settings(accumulate, clip, optimizer)
    data = samples(3 * accumulate)
    bad = samples(3 * accumulate, nan_batch=accumulate)[4 * accumulate : 8 * accumulate]
    stock = train(tmp_path, data, **how)
    mixed = [*data[: 4 * accumulate], *bad, *data[4 * accumulate :]]
    guarded = train(tmp_path, mixed, guard=RETRY, **how)
    assert guarded.guard.counts.skipped == {Cause.BAD_BATCH: 1}
    kept = state(guarded)
    del kept["rates"][1]  # the rate after the skipped step: that of the step before
    assert not differences(state(stock), kept)
    assert guarded.accelerator.scaler.get_scale() == INIT_SCALE


@pytest.mark.slow
def test_stopped_and_resumed_is_the_uninterrupted_run(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "guard": RETRY,
        "save_strategy": "steps",
        "save_steps": 4,
        "gradient_accumulation_steps": 2,
    }
    data = samples(16, nan_batch=3)
    whole = train(tmp_path / "whole", data, **how)
    first = train(tmp_path / "parts", data, max_steps=4, **how)
    assert first.guard.counts.skipped == {Cause.BAD_BATCH: 1}
    second = make(tmp_path / "parts", data, **how)
    second.train(resume_from_checkpoint=str(tmp_path / "parts/checkpoint-4"))
    assert not differences(state(whole)["model"], state(second)["model"])
    assert not differences(state(whole)["optimizer"], state(second)["optimizer"])
    assert second.guard.summary().skipped == {Cause.BAD_BATCH: 1}  # of the run before


@pytest.mark.slow
@pytest.mark.parametrize("taken_over", [True, False])
def test_checkpoints_go_from_the_stock_scaler_and_back(tmp_path: Path, taken_over: bool) -> None:
    how: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3}
    before, after = (None, RETRY) if taken_over else (RETRY, None)
    whole = train(tmp_path / "whole", samples(6))
    train(tmp_path / "parts", samples(6), guard=before, max_steps=3, **how)
    second = make(tmp_path / "parts", samples(6), guard=after, **how)
    second.train(resume_from_checkpoint=str(tmp_path / "parts/checkpoint-3"))
    assert not differences(state(whole)["model"], state(second)["model"])
    assert (
        second.accelerator.scaler.state_dict().items()
        >= {
            "scale": INIT_SCALE,
            "_growth_tracker": 6,
        }.items()
    )


def test_a_skipped_step_is_seen_where_the_trainer_shows_none(tmp_path: Path) -> None:
    stock = train(tmp_path, samples(6, nan_batch=2))
    guarded = train(tmp_path, samples(6, nan_batch=2), guard=RETRY)
    lines = [line for line in stock.state.log_history if "loss" in line]
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in lines)  # NaN is filtered out
    told = [line for line in guarded.state.log_history if "loss" in line]
    assert [line["halfguard/skipped_steps"] for line in told] == [0, 0, 1, 1, 1, 1]
    assert [line["halfguard/scale"] for line in told] == [INIT_SCALE] * 6


def test_what_the_trainer_alone_makes_of_a_nan_batch(tmp_path: Path) -> None:
    """The stock column of the table in docs/how-to/transformers.md."""
    stock = train(tmp_path, samples(6, nan_batch=2), optim="adamw_torch_fused")
    guarded = train(tmp_path, samples(6, nan_batch=2), guard=RETRY, optim="adamw_torch_fused")
    assert stock.model.norm.running_mean.isnan().any()
    assert guarded.model.norm.running_mean.isfinite().all()
    assert stock.accelerator.scaler.get_scale() == INIT_SCALE / 2
    assert guarded.accelerator.scaler.get_scale() == INIT_SCALE
    # The default optimizer is fused and called though its step is skipped: the schedule moves on.
    assert stock.lr_scheduler.last_epoch == 6
    assert guarded.lr_scheduler.last_epoch == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.cpu.amp.autocast:FutureWarning")  # transformers 4
def test_bf16_and_fp32_are_guarded_before_clipping(tmp_path: Path) -> None:
    for precision in ({"fp16": False, "bf16": True}, {"fp16": False}):
        data, how = samples(6), {"max_grad_norm": 0.01} | precision
        stock = train(tmp_path, data, **how)
        guarded = train(tmp_path, data, guard=RETRY, **how)
        assert not differences(state(stock), state(guarded))
        last = guarded.guard.last_step
        assert last is not None
        assert last.grad_norm > 0.02  # and not the norm after clipping


class Gradients(TrainerCallback):
    """Looks at gradients after the step, as loggers of their histograms do."""

    def __init__(self) -> None:
        self.missing = 0

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.missing += sum(p.grad is None for p in kwargs["model"].parameters())


def test_callbacks_still_see_gradients_after_the_step(tmp_path: Path) -> None:
    trainer = make(tmp_path, samples(4, nan_batch=1), guard=RETRY)
    watching = Gradients()
    trainer.add_callback(watching)
    trainer.train()
    assert watching.missing == 0


@pytest.mark.slow
def test_training_twice_continues_with_the_guards_state(tmp_path: Path) -> None:
    stock = make(tmp_path, samples(5))
    guarded = make(tmp_path, samples(5), guard=RETRY, run_dir=tmp_path / "run")
    for trainer in (stock, guarded):
        trainer.train()
        trainer.train()
    assert not differences(state(stock), state(guarded))
    assert guarded.guard.summary().applied == 10
    assert guarded.accelerator.scaler.state_dict()["_growth_tracker"] == 10


@pytest.mark.slow
def test_the_journal_has_the_skipped_steps_of_every_train(tmp_path: Path) -> None:
    guarded = make(tmp_path, samples(5, nan_batch=2), guard={}, run_dir=tmp_path / "run")
    guarded.train()
    first = guarded.guard
    guarded.train()
    assert guarded.guard is not first  # whose scheduler is no longer the Trainer's
    rows = [json.loads(line) for line in (tmp_path / "run/steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row.get("action") == "skip"] == [2, 7]


def test_incidents_and_the_journal_are_kept(tmp_path: Path) -> None:
    train(tmp_path, samples(6, nan_batch=2), guard={}, run_dir=tmp_path / "run")
    assert (tmp_path / "run/steps.jsonl").exists()
    assert len(list((tmp_path / "run/incidents").iterdir())) == 1


STOCK_SCRIPT = """
import torch
from transformers import Trainer, TrainingArguments
from tests.integrations.transformers_runs import Classifier, samples

torch.manual_seed(0)
model, data = Classifier(), samples(4)
args = TrainingArguments("out", per_device_train_batch_size=4, num_train_epochs=1, report_to=[], use_cpu=True)
trainer = Trainer(model, args, train_dataset=data)
trainer.train()
"""


@pytest.mark.slow
def test_the_diff_of_the_guide_guards_a_stock_script(tmp_path: Path) -> None:
    changed = apply_diff(first_diff("docs/how-to/transformers.md"), STOCK_SCRIPT, added=3)
    told = run_python("-c", changed + "print(trainer.guard.counts.applied)\n", cwd=tmp_path)
    assert told.splitlines()[-1] == "4"
    assert (tmp_path / "runs/a/steps.jsonl").exists()
