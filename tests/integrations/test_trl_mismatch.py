"""TRL's GRPO with the mixin logs how sampler and trainer agree, and keeps the tokens."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from halfguard.integrations.trl import MismatchMixin
from halfguard.rollouts import read_rollouts


class Trainer:
    """What the mixin uses of GRPOTrainer; TRL has a sampler's log-probabilities only beside vLLM."""

    def __init__(self, output: dict[str, Any]) -> None:
        self._metrics: Any = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.model = SimpleNamespace(training=True)
        self.state = SimpleNamespace(global_step=7)
        self.accelerator = SimpleNamespace(process_index=0)
        self._output = output

    def _generate_and_score_completions(self, _inputs: Any) -> dict[str, Any]:
        return self._output


class Guarded(MismatchMixin, Trainer):
    pass


def batch() -> dict[str, Any]:
    return {
        "prompt_ids": torch.tensor([[0, 5, 6], [7, 8, 9]]),
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "completion_ids": torch.tensor([[1, 2, 3], [4, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
        "sampling_per_token_logps": torch.tensor([[-1.0, -2.0, -3.0], [-1.0, 0.0, 0.0]]),
        "old_per_token_logps": torch.tensor([[-1.0, -2.3, -2.7], [-1.0, 9.0, 9.0]]),
    }


def test_the_numbers_are_logged_and_tokens_are_kept(tmp_path: Path) -> None:
    trainer: Any = Guarded(batch(), rollouts_dir=tmp_path / "rollouts")
    trainer._generate_and_score_completions([])
    logged = trainer._metrics["train"]
    assert logged["mismatch/mean"] == [pytest.approx(0.0, abs=1e-6)]
    assert logged["mismatch/outside"] == [0.5]
    assert set(logged) == {
        f"mismatch/{n}" for n in ("mean", "size", "k3", "chi2", "sample", "outside")
    }
    first, second = read_rollouts(tmp_path / "rollouts" / "step-000007-rank-0.jsonl")
    assert (first.prompt, second.completion) == ((5, 6), (4,))
    assert first.trainer == pytest.approx((-1.0, -2.3, -2.7))


def test_without_a_sampler_nothing_is_logged() -> None:
    output = batch()
    del output["sampling_per_token_logps"]
    trainer: Any = Guarded(output)
    assert trainer._generate_and_score_completions([]) is output
    assert not trainer._metrics["train"]


@pytest.mark.slow
def test_the_method_is_that_of_trl() -> None:
    trl = pytest.importorskip("trl")
    assert callable(trl.GRPOTrainer._generate_and_score_completions)
