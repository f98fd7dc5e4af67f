"""Plain half weights stall; FP32 masters learn what FP32 learns."""

from __future__ import annotations

import math

import pytest

from halfguard.precision_names import Precision
from tests.precision.training import OPTIMIZERS, train


@pytest.mark.slow
@pytest.mark.all_cells
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_end_where_fp32_ends_and_plain_half_does_not(name: str) -> None:
    build = OPTIMIZERS[name]
    before, fp32 = train(Precision.FP32, build, masters=False)
    _, plain = train(Precision.FP16_WEIGHTS, build, masters=False)
    _, masters = train(Precision.FP16_WEIGHTS, build, masters=True)
    assert fp32 < 0.8 * before
    # SGD moves nothing at all. AdamW's own state is half as well then, and does worse than nothing.
    assert math.isnan(plain) or plain > 0.99 * before
    assert masters == pytest.approx(fp32, rel=0.01)


def test_masters_of_an_fp32_model_change_nothing() -> None:
    build = OPTIMIZERS["adamw-foreach"]
    assert train(Precision.FP32, build, masters=True) == train(Precision.FP32, build, masters=False)
