"""The GRPO example learns in FP16, and its sampler and trainer agree better than in BF16."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.docs import ROOT
from tests.support.programs import run_python, run_ranks

pytestmark = pytest.mark.slow
FOLDER = ROOT / "examples" / "grpo_fp16"
GUESSED = 1 / 16  # the reward of an untrained policy, at most


def last(told: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


def test_fp16_learns_with_a_smaller_mismatch_than_bf16() -> None:
    half = last(run_python("train.py", "fp16", "24", cwd=FOLDER))
    assert (half["applied"], half["retried"], half["skipped"]) == (24, 0, 0)
    assert half["reward"] > 1.5 * GUESSED
    wide = last(run_python("train.py", "bf16", "4", cwd=FOLDER))
    assert 0 < half["k3"] < wide["k3"] / 5
    assert half["outside"] == 0


def test_two_ranks_shard_the_policy_and_return_fp32() -> None:
    told = run_ranks(
        "transformers", "examples.grpo_fp16.train", "fp16", "3", ACCELERATE_USE_CPU="true"
    )
    found = last(told)
    assert (found["ranks"], found["applied"], found["skipped"]) == (2, 3, 0)
    assert 0 < found["size"] < 2e-4  # 5.5e-4 if log-probabilities are rounded to FP16
