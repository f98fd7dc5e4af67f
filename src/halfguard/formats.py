"""The floating-point formats used in training, with exact rounding to each format.

A binary format is defined by its number of exponent bits and its number of mantissa bits. All limits follow
from these two numbers:

* a normal value is ``±1.mmm × 2**e``, and its neighbour is one *ulp* away,
  ``2**(e - mantissa_bits)``;
* below the smallest normal exponent the ulp stays the same (subnormals), down to zero;
* the highest exponent is reserved for infinity and NaN, except in E4M3FN, which has no infinity
  and uses that exponent for normal values, with one bit pattern left for NaN.

``Format.round`` rounds the exact value once, to nearest, ties to even. A chain of casts from float64 to
float32 to float16 rounds twice, and so does torch's own cast from float64 to float16.

This module needs only the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from halfguard.errors import UsageError


@dataclass(frozen=True)
class Format:
    """A floating-point format. All limits are exact as Python floats."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    """Bits that are stored; a normal value has one more, which is always 1."""
    aliases: tuple[str, ...]
    "Other names for the format, in lower case."
    dtype: str | None = None
    "The name of torch's dtype, or None if torch has no such dtype."
    has_infinity: bool = True

    @cached_property
    def bias(self) -> int:
        """The offset that is added to an exponent before it is stored."""
        return (1 << (self.exponent_bits - 1)) - 1

    @cached_property
    def largest(self) -> float:
        """The largest finite value: 65504 for FP16."""
        if self.has_infinity:
            return math.ldexp(2.0 - self.epsilon, self.bias)
        return math.ldexp(2.0 - 2 * self.epsilon, self.bias + 1)

    @cached_property
    def smallest_normal(self) -> float:
        """The smallest positive value that carries all its bits: 2**-14 for FP16."""
        return math.ldexp(1.0, 1 - self.bias)

    @cached_property
    def smallest_subnormal(self) -> float:
        """The smallest positive value: 2**-24 for FP16."""
        return math.ldexp(self.smallest_normal, -self.mantissa_bits)

    @cached_property
    def epsilon(self) -> float:
        """The spacing at 1: 2**-10 for FP16. Not the smallest value: see ``smallest_subnormal``."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @cached_property
    def overflow_threshold(self) -> float:
        """The magnitude from which rounding overflows: 65520 for FP16.

        It is half an ulp above ``largest``. The tie itself rounds to infinity, except in E4M3FN,
        where 464 still rounds to 448 and only larger values overflow.
        """
        return self.largest + self.ulp(self.largest) / 2

    @cached_property
    def underflow_threshold(self) -> float:
        """The largest magnitude that rounds to zero: 2**-25, about 2.98e-8, for FP16."""
        return self.smallest_subnormal / 2

    @cached_property
    def largest_exact_integer(self) -> int:
        """The limit up to which every integer is exact: 2048 for FP16."""
        return 1 << (self.mantissa_bits + 1)

    def ulp(self, x: float | Fraction) -> float:
        """Return the distance from ``x`` to the next value away from zero; infinite beyond ``largest``."""
        if isinstance(x, float) and math.isnan(x):
            return math.nan
        if not -self.largest <= x <= self.largest:
            return math.inf
        n, d = x.as_integer_ratio()
        return math.ldexp(1.0, self._ulp_exponent(abs(n), d))

    def round(self, x: float | Fraction) -> float:
        """Return the value of the format that is nearest to ``x``, ties to even.

        An overflow returns infinity, or NaN if the format has no infinity. This is the non-saturating
        conversion of the OCP standard. (torch's cast to E4M3FN returned NaN in earlier versions. In torch
        2.13 it saturates and returns 448, even for infinity.)
        """
        if x == 0 or (isinstance(x, float) and math.isnan(x)):
            return float(x)  # keeps the sign of -0.0
        if not -self.overflow_threshold <= x <= self.overflow_threshold:
            return self._overflow(x)
        n, d = x.as_integer_ratio()
        exponent = self._ulp_exponent(abs(n), d)
        ulps = _divide_half_even(abs(n) << max(-exponent, 0), d << max(exponent, 0))
        rounded = math.ldexp(ulps, exponent)
        if rounded > self.largest:
            return self._overflow(x)
        return -rounded if x < 0 else rounded

    def headroom(self, absmax: float) -> float:
        """Return how often ``absmax`` can double before it exceeds ``largest``, in bits."""
        if absmax == 0:
            return math.inf
        return math.log2(self.largest) - math.log2(abs(absmax))

    def update_survives(self, w: float, dw: float) -> bool:
        """Return whether a weight stored in this format changes when ``dw`` is added to it."""
        before = self.round(w)
        if not math.isfinite(before):
            return False
        if not math.isfinite(dw):
            return True
        return self.round(Fraction(before) + Fraction(dw)) != before

    def _ulp_exponent(self, n: int, d: int) -> int:
        """Return k where 2**k is the spacing at the magnitude n/d."""
        if n == 0:
            return 1 - self.bias - self.mantissa_bits
        exponent = n.bit_length() - d.bit_length()  # the exponent of n/d, or one too high
        if n << max(-exponent, 0) < d << max(exponent, 0):
            exponent -= 1
        return max(exponent, 1 - self.bias) - self.mantissa_bits

    def _overflow(self, x: float | Fraction) -> float:
        if not self.has_infinity:
            return math.nan
        return -math.inf if x < 0 else math.inf


def _divide_half_even(n: int, d: int) -> int:
    quotient, rest = divmod(n, d)
    up = 2 * rest > d or (2 * rest == d and quotient % 2 == 1)
    return quotient + up


FP16 = Format("FP16", 5, 10, ("float16", "half"), "float16")
BF16 = Format("BF16", 8, 7, ("bfloat16",), "bfloat16")
FP32 = Format("FP32", 8, 23, ("float32", "float", "single"), "float32")
# Tensor cores read FP32 operands in this format; nothing is stored in it. Products are summed in
# FP32. How operands are rounded depends on the hardware.
TF32 = Format("TF32", 8, 10, ("tensorfloat32", "tensorfloat-32"))
FP8_E4M3FN = Format(
    "FP8 E4M3FN",
    4,
    3,
    ("float8_e4m3fn", "fp8_e4m3fn", "e4m3fn", "fp8_e4m3", "e4m3"),
    "float8_e4m3fn",
    has_infinity=False,
)
FP8_E5M2 = Format(
    "FP8 E5M2",
    5,
    2,
    ("float8_e5m2", "fp8_e5m2", "e5m2"),
    "float8_e5m2",
)

ALL = (FP16, BF16, FP32, TF32, FP8_E4M3FN, FP8_E5M2)

_BY_NAME = {name: f for f in ALL for name in (f.name.lower(), *f.aliases)}
_BY_DTYPE = {f.dtype: f for f in ALL if f.dtype is not None}


def get(name: str) -> Format:
    """Return a format by its name or alias: ``"fp16"``, ``"half"``, ``"torch.bfloat16"``."""
    found = _BY_NAME.get(name.strip().lower().removeprefix("torch."))
    if found is None:
        raise UsageError(
            f"{name!r} is not a known format.", cure=f"Allowed: {', '.join(sorted(_BY_NAME))}."
        )
    return found


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype, such as ``"float16"`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def for_dtype(dtype: object) -> Format:
    """Return the format of a torch dtype, given as a dtype or by name, with or without ``torch.``."""
    found = _BY_DTYPE.get(dtype_name(dtype))
    if found is None:
        raise UsageError(
            f"halfguard has no format for the dtype {dtype}.",
            cure=f"Allowed: {', '.join(_BY_DTYPE)}.",
        )
    return found


def largest_of(dtype: str) -> float:
    """Return the largest finite value of a dtype by its name; infinity for other dtypes, such as float64."""
    found = _BY_DTYPE.get(dtype)
    return math.inf if found is None else found.largest
