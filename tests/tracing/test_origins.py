"""Whether a tensor is finite, by its smallest and its largest value."""

from __future__ import annotations

import math

import pytest
import torch

from halfguard.tracing.origins import has_nan, is_finite
from tests.support.counting import LargestResult

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e5m2])
@pytest.mark.parametrize("value", [1.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_one_value_decides(dtype: torch.dtype, value: float, place: int) -> None:
    values = torch.ones(1000)
    values[place] = value
    tensor = values.to(dtype)
    assert is_finite(tensor) is math.isfinite(value)
    assert has_nan(tensor) is math.isnan(value)
    part = tensor.view(50, 20)[:, 1::2]  # not contiguous; place 999 is in it
    assert is_finite(part) is (math.isfinite(value) or place != 999)


def test_the_imaginary_part_counts_in_any_view() -> None:
    tensor = torch.tensor([complex(1, math.inf), 2j])
    for view in (tensor, tensor.conj(), tensor.imag, tensor.conj().imag):
        assert not is_finite(view)
        assert not has_nan(view)
    assert is_finite(tensor.real)


def test_every_half_value_by_itself() -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    for half in halves[:: 2**6]:
        assert is_finite(half) is bool(half.isfinite())
    assert all(is_finite(half) is False for half in halves[~halves.isfinite()][:64])
    assert is_finite(halves[halves.isfinite()])


def test_a_check_takes_no_memory_of_the_size_of_the_tensor() -> None:
    tensor = torch.ones(10_000)
    with LargestResult(tensor) as largest:
        assert is_finite(tensor)
    assert largest.elements <= 2
