"""No gain is explained, by reasons that the measurements show."""

from __future__ import annotations

import pytest

from halfguard.diagnosis.cost.gain import gain_findings
from halfguard.records.cost import Cost, Spread
from tests.diagnosis.cost.jobs import measured


class TestNoGainInTime:
    """Failure 33: a small model, a machine without fast half, TF32, casts."""

    @pytest.mark.parametrize(
        ("cost", "why", "cure"),
        [
            (measured(ratio=1.2, seconds=0.01, flops=1e8), "too small", "larger batch"),
            (measured(ratio=1.2, seconds=0.2, flops=1e8), "memory bandwidth", "Fuse"),
            (
                measured(ratio=1.2, seconds=9.0, matmul=1.05),
                "memory bandwidth",
                "FP32 on this machine",
            ),
            (
                measured(ratio=1.2, matmul=1.05),
                "not faster in this precision",
                "FP32 on this machine",
            ),
            (measured(ratio=0.97, fp32_products="high"), "TF32", "Nothing is wrong"),
            (measured(ratio=1.0, casts=400), "are casts", "fp32_island"),
            (measured(ratio=0.95), "small part", "FP32 here"),
        ],
    )
    def test_each_reason_is_named_with_its_cure(self, cost: Cost, why: str, cure: str) -> None:
        (found,) = gain_findings(cost)
        assert found.code == "HD201"
        assert why in found.why
        assert cure in found.cure

    def test_what_noise_hides_is_not_claimed(self) -> None:
        cost = measured(ratio=1.1)
        noisy = cost.costs[1].model_copy(update={"ratio": Spread(median=1.1, low=0.9, high=1.4)})
        (found,) = gain_findings(cost.model_copy(update={"costs": (cost.costs[0], noisy)}))
        assert "is not measurably faster than fp32" in found.message
        (found,) = gain_findings(cost)
        assert "takes 1.10 times as long" in found.message

    def test_what_nobody_asked_for_is_a_note(self) -> None:
        (found,) = gain_findings(measured(ratio=1.2), "note")
        assert found.severity == "note"

    def test_without_a_rate_of_the_machine_no_share_is_claimed(self) -> None:
        cost = measured(ratio=1.2, seconds=0.01, flops=1e8).model_copy(
            update={"product_flops": None}
        )
        (found,) = gain_findings(cost)
        assert "% of a step" not in found.why

    def test_a_step_that_is_faster_and_smaller_is_clean(self) -> None:
        assert gain_findings(measured(ratio=0.5)) == ()

    def test_a_tenth_is_the_line(self) -> None:
        assert [found.code for found in gain_findings(measured(ratio=0.92))] == ["HD201"]
        assert gain_findings(measured(ratio=0.90)) == ()
