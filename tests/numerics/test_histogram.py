"""Exponent histograms against math.frexp, one value at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from halfguard.numerics.histogram import BINS, INFINITE, NAN, ZERO, bin_index, histogram
from tests.support.counting import OpCounter

pytestmark = pytest.mark.usefixtures("device")


def reference(tensor: Tensor) -> list[int]:
    counts = [0] * BINS
    for value in tensor.double().reshape(-1).tolist():
        if math.isnan(value):
            counts[NAN] += 1
        elif math.isinf(value):
            counts[INFINITE] += 1
        elif value == 0:
            counts[ZERO] += 1
        else:
            counts[bin_index(math.frexp(value)[1] - 1)] += 1
    return counts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_value(dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert histogram([values]).tolist() == [reference(values)]


def test_wider_formats_and_mixed_lists() -> None:
    extremes = [1e-310, 1e-45, 3.5e38, 1e300, -2.0, 0.0, math.inf, math.nan]
    tensors = [
        torch.tensor(extremes, dtype=torch.float64),
        torch.tensor([1e-45, 3.4e38]),
        torch.tensor(0.5, dtype=torch.float16),
        torch.empty(0),
        torch.randn(300, generator=torch.Generator().manual_seed(0)).double(),
    ]
    assert histogram(tensors).tolist() == [reference(tensor) for tensor in tensors]


@pytest.mark.on_standin
def test_cost_does_not_depend_on_the_number_of_tensors() -> None:
    counters = []
    for number in (10, 2000):
        counter = OpCounter()
        with counter:
            histogram([torch.zeros(100) for _ in range(number)])
        counters.append(counter)
    # torch.zeros above is counted too: one each.
    few, many = counters
    assert many.total - few.total == 1990
    assert many.host_syncs == 0


def test_runs_under_fake_tensors() -> None:
    with FakeTensorMode():
        assert histogram([torch.empty(3), torch.empty(4)]).shape == (2, BINS)
