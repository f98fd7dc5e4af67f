"""Advice keeps what it promises: the change is made, and the peak is measured again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from halfguard import Workload
from halfguard.diagnosis.cost import measure_cost
from tests.diagnosis.cost.jobs import HALF, job, loss
from tests.support.devices import device_type

pytestmark = pytest.mark.slow


class TestSavings:
    """Each promise is kept: the change is made, and the peak is measured again."""

    def peak(self, workload: Workload) -> int:
        return measure_cost(workload, ["bf16-mixed"], rounds=1).costs[0].memory.peak

    def saving(self, workload: Workload, words: str) -> int:
        cost = measure_cost(workload, ["bf16-mixed"], rounds=1)
        return next(saving.saves for saving in cost.savings if words in saving.change)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("words", "changed"),
        [
            ("micro-batch", lambda: job(rows=512, width=64)),
            ("4 blocks of 'blocks'", lambda: job(rows=1024, width=64, checkpointed=True)),
        ],
    )
    def test_at_least_what_was_promised_is_saved(
        self, words: str, changed: Callable[[], Workload]
    ) -> None:
        before = job(rows=1024, width=64)
        promised, real = self.saving(before, words), self.peak(before) - self.peak(changed())
        assert 0.9 * promised <= real <= 1.8 * promised

    def test_a_precision_that_passed_is_the_first_advice_for_one_that_did_not(self) -> None:
        def full(model: nn.Module, batch: Tensor) -> Tensor:
            if torch.is_autocast_enabled(device_type()):
                return loss(model, batch)
            raise torch.OutOfMemoryError("CUDA out of memory.")

        cost = measure_cost(job(rows=1024, width=64, loss=full), HALF, rounds=1)
        assert cost.savings[0].change == "train in fp16-mixed"
        assert cost.savings_for == "fp32"
        assert cost.savings[0].peak == cost.costs[1].memory.peak

    def test_savings_shrink_the_peak_one_after_the_other(self) -> None:
        cost = measure_cost(job(rows=256, width=64), HALF, rounds=1)
        peaks = [cost.costs[1].memory.peak, *(saving.peak for saving in cost.savings)]
        assert len(peaks) > 3
        assert peaks == sorted(peaks, reverse=True)
        kinds = [saving.same_result for saving in cost.savings]
        assert kinds == sorted(kinds, reverse=True), "what computes the same comes first"
