"""Formats against torch and numpy: every half value, every midpoint, every limit."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfguard import formats
from halfguard.errors import UsageError
from halfguard.formats import BF16, FP8_E4M3FN, FP8_E5M2, FP16, FP32, TF32, Format
from tests.support.cases import each

TORCH = [FP16, BF16, FP32, FP8_E4M3FN, FP8_E5M2]
SMALL = [FP16, BF16, FP8_E4M3FN, FP8_E5M2]


def dtype_of(f: Format) -> torch.dtype:
    assert f.dtype is not None
    found = getattr(torch, f.dtype)
    assert isinstance(found, torch.dtype)
    return found


def all_values(f: Format) -> list[float]:
    """Every finite value of a format of 8 or 16 bits, ascending, with one zero."""
    dtype = dtype_of(f)
    bits = torch.arange(2 ** (8 * dtype.itemsize))
    store = torch.uint8 if dtype.itemsize == 1 else torch.uint16
    values = bits.to(store).view(dtype).to(torch.float64)
    return sorted(set(values[values.isfinite()].tolist()))


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (
        a == b and math.copysign(1, a) == math.copysign(1, b)
    )


@each("f", TORCH)
def test_limits_are_those_of_torch(f: Format) -> None:
    info = torch.finfo(dtype_of(f))
    assert (f.largest, f.smallest_normal, f.epsilon) == (info.max, info.tiny, info.eps)


def test_limits_of_fp16_and_tf32() -> None:
    assert FP16.overflow_threshold == 65520
    assert FP16.underflow_threshold == 2**-25
    assert FP16.smallest_subnormal == 2**-24
    assert FP16.largest_exact_integer == 2048
    assert (TF32.epsilon, TF32.smallest_normal) == (2**-10, 2**-126)
    assert TF32.largest == (2 - 2**-10) * 2.0**127


@each("f", SMALL)
def test_every_value_rounds_to_itself(f: Format) -> None:
    values = all_values(f)
    assert [f.round(v) for v in values] == values
    assert values[-1] == f.largest
    assert min(v for v in values if v > 0) == f.smallest_subnormal


@pytest.mark.slow
@pytest.mark.parametrize("f", SMALL, ids=lambda f: f.name)
def test_midpoints_go_to_even_and_their_neighbours_to_the_nearest(f: Format) -> None:
    values = [v for v in all_values(f) if v >= 0]
    tiny = Fraction(1, 2**300)
    for index, (low, high) in enumerate(itertools.pairwise(values)):
        middle = (Fraction(low) + Fraction(high)) / 2
        # Non-negative values in ascending order are the bit patterns 0, 1, 2, ...
        assert f.round(middle) == (low if index % 2 == 0 else high)
        assert f.round(middle - tiny) == low
        assert f.round(middle + tiny) == high


@settings(deadline=None)
@given(st.floats(width=32))
def test_rounding_is_the_cast_of_torch(x: float) -> None:
    for f in (FP16, BF16, FP8_E5M2):
        assert same(f.round(x), torch.tensor(x).to(dtype_of(f)).item()), f.name


@settings(deadline=None)
@given(st.floats())
def test_rounding_a_float64_is_the_cast_of_numpy(x: float) -> None:
    with np.errstate(all="ignore"):
        assert same(FP16.round(x), float(np.float64(x).astype(np.float16)))
        assert same(FP32.round(x), float(np.float64(x).astype(np.float32)))


@settings(deadline=None)
@given(st.integers(0, 0x7BFF), st.integers(-3, 3))
def test_one_rounding_near_a_midpoint(bits: int, ulps: int) -> None:
    low = np.uint16(bits).view(np.float16)
    middle = float(low) + FP16.ulp(float(low)) / 2
    x = middle + ulps * math.ulp(middle)
    with np.errstate(over="ignore"):
        assert FP16.round(x) == float(np.float64(x).astype(np.float16))


@settings(deadline=None)
@given(st.floats(width=32))
def test_e4m3fn_is_the_cast_of_torch_and_nan_beyond(x: float) -> None:
    cast = torch.tensor(x).to(torch.float8_e4m3fn).item()
    rounded = FP8_E4M3FN.round(x)
    if abs(x) <= FP8_E4M3FN.overflow_threshold:
        assert same(rounded, cast)
    else:
        assert math.isnan(rounded)
        # Which of the two depends on the version of torch.
        assert math.isnan(cast) or cast == math.copysign(448, x)


@each("f", [FP16, BF16, FP32, TF32, FP8_E5M2])
def test_thresholds_and_their_neighbours(f: Format) -> None:
    over, under = f.overflow_threshold, f.underflow_threshold
    assert f.round(over) == math.inf
    assert f.round(-over) == -math.inf
    assert f.round(math.nextafter(over, 0)) == f.largest
    assert same(f.round(-under), -0.0)
    assert f.round(math.nextafter(under, 1)) == f.smallest_subnormal
    assert f.round(Fraction(10) ** 400) == math.inf
    assert f.round(-(Fraction(10) ** -400)) == 0


def test_e4m3fn_overflows_above_its_threshold() -> None:
    assert FP8_E4M3FN.overflow_threshold == 464
    assert FP8_E4M3FN.round(464) == 448
    assert math.isnan(FP8_E4M3FN.round(math.nextafter(464, 500)))
    assert math.isnan(FP8_E4M3FN.round(-math.inf))


def test_ulp_is_the_spacing_of_numpy_over_all_halves() -> None:
    values = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = values[(values >= 0) & (values < 65504)]
    spacing = np.spacing(finite).astype(np.float64).tolist()
    assert [FP16.ulp(float(x)) for x in finite] == spacing
    assert [FP16.ulp(-float(x)) for x in finite] == spacing
    assert FP16.ulp(65504) == 32
    assert FP16.ulp(65505) == math.inf
    assert math.isnan(FP16.ulp(math.nan))


@settings(deadline=None)
@given(st.floats(min_value=2**-126, max_value=2**126, width=32))
def test_ulp_is_the_step_of_nextafter(x: float) -> None:
    for f in (BF16, FP32):
        start = torch.tensor(x).to(dtype_of(f))
        step = torch.nextafter(start, torch.tensor(math.inf, dtype=start.dtype)).double()
        assert f.ulp(start.item()) == (step - start.double()).item()


def test_headroom_counts_doublings() -> None:
    assert FP16.headroom(65504) == 0
    assert FP16.headroom(-65504 / 8) == pytest.approx(3)
    assert FP16.headroom(65504 * 2) == pytest.approx(-1)
    assert FP16.headroom(0) == math.inf
    assert FP16.headroom(math.inf) == -math.inf
    assert math.isnan(FP16.headroom(math.nan))


@settings(deadline=None)
@given(st.floats(width=16, allow_nan=False), st.floats(width=16, allow_nan=False))
def test_update_survives_as_in_torch(w: float, dw: float) -> None:
    for f in (FP16, BF16):
        before, step = (torch.tensor(v).to(dtype_of(f)) for v in (w, dw))
        changed = bool(before + step != before) and bool(before.isfinite())
        assert f.update_survives(w, step.item()) == changed


def test_small_updates_of_one() -> None:
    assert not FP16.update_survives(1.0, -1e-4)
    assert FP32.update_survives(1.0, -1e-4)
    assert not BF16.update_survives(1.0, 1e-3)


@each(
    ("name", "f"),
    [
        ("half", FP16),
        ("FP16", FP16),
        ("torch.bfloat16", BF16),
        (" bf16 ", BF16),
        ("E4M3", FP8_E4M3FN),
    ],
)
def test_formats_are_found_by_the_names_people_use(name: str, f: Format) -> None:
    assert formats.get(name) is f


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    with pytest.raises(UsageError, match=r"'fp17'(.|\n)*bfloat16"):
        formats.get("fp17")


@each("f", TORCH)
def test_a_dtype_has_its_format(f: Format) -> None:
    assert formats.for_dtype(dtype_of(f)) is f
    assert formats.for_dtype(f.dtype) is f
    assert f.dtype is not None
    assert formats.largest_of(f.dtype) == torch.finfo(dtype_of(f)).max
    assert formats.largest_of("int32") == math.inf


def test_a_dtype_without_a_format_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch\.int32(.|\n)*float16"):
        formats.for_dtype(torch.int32)
