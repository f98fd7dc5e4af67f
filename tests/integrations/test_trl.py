"""TRL's trainers with the guard before them, bit for bit those that are alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from tests.integrations.transformers_runs import INIT_SCALE, state
from tests.integrations.trl_runs import make, rows
from tests.support.models import differences

RETRY = {"skip": {"on_nonfinite": "retry_fp32"}}
pytestmark = [
    pytest.mark.usefixtures("seed"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # TRL's own, of every kind
]
kinds = pytest.mark.parametrize("kind", ["sft", "dpo", "grpo"])
accumulations = pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.0), (4, 0.5)])


def train(kind: str, folder: Path, data: Any, **how: Any) -> Any:
    trainer = make(kind, folder, data, **how)
    trainer.train()
    return trainer


@kinds
@accumulations
def test_a_healthy_run_is_trls_own(tmp_path: Path, kind: str, accumulate: int, clip: float) -> None:
    how: dict[str, Any] = {"accumulate": accumulate, "clip": clip}
    data = rows(kind, 2 * accumulate)
    stock = train(kind, tmp_path, data, **how)
    guarded = train(kind, tmp_path, data, guard=RETRY, **how)
    assert guarded.model.dtypes == {torch.float16}
    assert not differences(state(stock), state(guarded))
    assert guarded.guard.counts.applied == 2


@kinds
@accumulations
def test_if_every_step_is_retried_the_run_is_trls_own_in_fp32(
    tmp_path: Path, kind: str, accumulate: int, clip: float
) -> None:
    how: dict[str, Any] = {"accumulate": accumulate, "clip": clip, "overflow": True}
    data = rows(kind, 2 * accumulate)
    fp32 = train(kind, tmp_path, data, fp16=False, **how)
    guarded = train(kind, tmp_path, data, guard=RETRY, **how)
    assert guarded.model.dtypes == {torch.float16, torch.float32}
    assert guarded.guard.counts.retried == 2
    assert not differences(state(fp32), state(guarded))


@kinds
@accumulations
def test_after_a_nan_batch_the_run_is_trls_own_without_it(
    tmp_path: Path, kind: str, accumulate: int, clip: float
) -> None:
    how: dict[str, Any] = {"accumulate": accumulate, "clip": clip}
    data = rows(kind, 3 * accumulate)
    bad = rows(kind, 2 * accumulate, bad=accumulate)[accumulate:]
    stock = train(kind, tmp_path, data, **how)
    mixed = [*data[:accumulate], *bad, *data[accumulate:]]
    guarded = train(kind, tmp_path, mixed, guard=RETRY, **how)
    assert sum(guarded.guard.counts.skipped.values()) == 1
    kept = state(guarded)
    del kept["rates"][1]
    assert not differences(state(stock), kept)
    assert guarded.accelerator.scaler.get_scale() == INIT_SCALE


def test_sft_stopped_and_resumed_is_the_uninterrupted_run(tmp_path: Path) -> None:
    data = [*rows("sft", 3), *rows("sft", 8, bad=3)[3:]]
    how: dict[str, Any] = {"guard": RETRY, "save_strategy": "steps", "save_steps": 4}
    whole = train("sft", tmp_path / "whole", data, **how)
    assert sum(whole.guard.counts.skipped.values()) == 1
    stopped = make("sft", tmp_path / "parts", data, **how, max_steps=4)
    stopped.train()
    resumed = make("sft", tmp_path / "parts", data, **how)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts/checkpoint-4"))
    expected = state(whole)
    expected["rates"] = expected["rates"][4:]
    assert not differences(expected, state(resumed))
    assert not differences(whole.guard.state_dict(), resumed.guard.state_dict())


def tokens_seen(trainer: Any) -> list[float]:
    return [line["num_tokens"] for line in trainer.state.log_history if "num_tokens" in line]


def test_a_repeated_step_is_counted_and_logged_once(tmp_path: Path) -> None:
    data = rows("sft", 4)
    fp32 = train("sft", tmp_path, data, fp16=False, overflow=True)
    guarded = train("sft", tmp_path, data, guard=RETRY, overflow=True)
    assert guarded.guard.counts.retried == 4
    assert len(tokens_seen(fp32)) == 4
    assert tokens_seen(guarded) == tokens_seen(fp32)


def with_lora(dtype: torch.dtype) -> Callable[[Any], Any]:
    """Return a wrapper that trains adapters in FP32 over a frozen base, stored in half or in FP32."""

    def wrap(model: Any) -> Any:
        model.to(torch.float16).to(dtype)  # the same values in both formats
        torch.manual_seed(5)
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        adapted = get_peft_model(model, config)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:  # peft's own are zero, or were rounded to the base's format
                nn.init.normal_(parameter, std=0.1)
        adapted.dtypes = model.dtypes
        return adapted

    return wrap


@pytest.mark.parametrize("reentrant", [False, True])
def test_adapters_over_a_half_base_with_checkpointing_are_repeated_in_real_fp32(
    tmp_path: Path, reentrant: bool
) -> None:
    how: dict[str, Any] = {
        "overflow": True,
        "accumulate": 2,
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": reentrant},
    }
    data = rows("sft", 6)
    fp32 = train("sft", tmp_path, data, fp16=False, wrap=with_lora(torch.float32), **how)
    guarded = train("sft", tmp_path, data, guard=RETRY, wrap=with_lora(torch.float16), **how)
    assert guarded.guard.counts.retried == 3
    assert guarded.model.dtypes >= {torch.float16, torch.float32}
    base = guarded.model.base_model.model.model.layers[0].mlp.up_proj.weight
    assert base.dtype == torch.float16  # and stays so
    trained, expected = (
        {name: p for name, p in one.model.named_parameters() if p.requires_grad}
        for one in (guarded, fp32)
    )
    assert len(trained) == 8
    assert not differences(expected, trained)
