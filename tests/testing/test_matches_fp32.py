"""`assert_matches_fp32` gives the verdict of a study."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.testing import assert_matches_fp32
from tests.support.models import batches, loss_fn, make


def job(seed: int, loss: Any = loss_fn) -> hg.Workload:
    model = make("mlp-batchnorm", seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return hg.Workload(model, loss, batches(16, seed), optimizer)


@pytest.mark.slow
def test_a_model_that_learns_as_well_passes() -> None:
    assert_matches_fp32(job, steps=40, precision="bf16-mixed", within=0.1)


def test_a_run_that_breaks_fails() -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        wide: Tensor = model(batch[0]).float() * 1000
        return loss_fn(model, batch) + 1e-8 * (wide @ wide.T).float().mean()

    def breaking(seed: int) -> hg.Workload:
        return job(seed, loss)

    with pytest.raises(AssertionError, match="FAIL") as caught:
        assert_matches_fp32(breaking, steps=5, seeds=range(3))
    assert "fp16-mixed against fp32 over 3 seeds" in str(caught.value)


def test_too_few_seeds_claim_nothing() -> None:
    with pytest.raises(AssertionError, match="INCONCLUSIVE"):
        assert_matches_fp32(job, steps=3, seeds=range(2))


def test_runs_that_are_no_pairs_are_refused() -> None:
    one = job(0)
    with pytest.raises(UsageError, match="not a pair"):
        assert_matches_fp32(lambda _seed: one, steps=3, seeds=range(3))
    with pytest.raises(UsageError, match="each seed must occur once"):
        assert_matches_fp32(job, steps=3, seeds=[0, 0, 0])
