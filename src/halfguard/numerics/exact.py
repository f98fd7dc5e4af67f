"""Arithmetic without rounding, to measure what rounding costs.

A finite value is a ``Fraction``, or a float taken at its exact value. Infinity, NaN and the two
zeros are floats and follow IEEE 754. Sums, products, quotients and integer powers are exact;
irrational results are correct to 100 decimal digits. Results beyond about ``e**±10000`` become
infinity or zero: no format here reaches so far.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import partial

Value = Fraction | float

# The largest exponent that exp() computes, and the longest exact power in bits.
_LARGEST_EXP = 10_000
_LARGEST_POWER_BITS = 40_000
_DIGITS = Context(prec=100)
# tanh of a small value cancels up to 60 digits; below 1e-60 the series is used.
_WORKING_DIGITS = 190

PI = Fraction(
    "3.14159265358979323846264338327950288419716939937510"
    "58209749445923078164062862089986280348253421170680"
)


def is_finite(x: Value) -> bool:
    """Return whether ``x`` is neither infinite nor NaN."""
    return isinstance(x, Fraction) or math.isfinite(x)


def is_nan(x: Value) -> bool:
    """Return whether ``x`` is NaN; also works for fractions too large for a float."""
    return isinstance(x, float) and math.isnan(x)


def _similar_float(x: Value) -> float:
    """Return a float of the same sign and class (zero, finite, infinite), close to ``x``."""
    if isinstance(x, float) or x == 0:
        return float(x)
    low, high = Fraction(sys.float_info.min), Fraction(sys.float_info.max)
    magnitude = float(min(max(abs(x), low), high))
    return magnitude if x > 0 else -magnitude


def _combine(operate: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    """Operate exactly; if the result is zero or not finite, take its sign from IEEE floats."""
    if is_finite(a) and is_finite(b):
        result = operate(Fraction(a), Fraction(b))
        if result != 0:
            return result
    return operate(_similar_float(a), _similar_float(b))


add = partial(_combine, operator.add)
subtract = partial(_combine, operator.sub)
multiply = partial(_combine, operator.mul)


def divide(a: Value, b: Value) -> Value:
    """Return a / b; a zero divisor gives infinity or NaN, as in a tensor."""
    if b == 0:
        a = _similar_float(a)
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return _combine(operator.truediv, a, b)


def power(a: Value, b: Value) -> Value:
    """Return a ** b; a negative number to a fractional power is NaN."""
    if a == 0 or not is_finite(a) or not is_finite(b):
        return _special_power(_similar_float(a), _similar_float(b))
    base, exponent = Fraction(a), Fraction(b)
    whole = exponent.denominator == 1
    if base < 0 and not whole:
        return math.nan
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if whole and bits * abs(exponent) <= _LARGEST_POWER_BITS:
        return Fraction(base**exponent.numerator)
    if exponent == Fraction(1, 2):
        return sqrt(base)
    magnitude = exp(exponent * Fraction(log(abs(base))))
    return -magnitude if base < 0 and exponent % 2 == 1 else magnitude


def sqrt(x: Value) -> Value:
    """Return the square root; NaN below zero."""
    if x < 0:
        return math.nan
    return _by_decimal(Decimal.sqrt, x) if is_finite(x) and x != 0 else x


def exp(x: Value) -> Value:
    """Return e ** x."""
    if is_nan(x):
        return x
    if not -_LARGEST_EXP <= x <= _LARGEST_EXP:
        return math.inf if x > 0 else 0.0
    return _by_decimal(Decimal.exp, x)


def log(x: Value) -> Value:
    """Return the natural logarithm; -inf at zero, NaN below it."""
    if x == 0:
        return -math.inf
    if x < 0:
        return math.nan
    return _by_decimal(Decimal.ln, x) if is_finite(x) else x


def log2(x: Value) -> Value:
    """Return the logarithm to base 2; -inf at zero, NaN below it."""
    if x > 0 and is_finite(x):
        return _by_decimal(lambda d: d.ln() / Decimal(2).ln(), x)
    return log(x)


def tanh(x: Value) -> Value:
    """Return the hyperbolic tangent."""
    if is_nan(x) or x == 0:
        return x
    if not -_LARGEST_EXP <= x <= _LARGEST_EXP:
        return 1.0 if x > 0 else -1.0
    if -1e-60 < x < 1e-60:
        small = Fraction(x)
        return small - small**3 / 3
    return _by_decimal(lambda d: 1 - 2 / ((2 * d).exp() + 1), x)


def sigmoid(x: Value) -> Value:
    """Return 1 / (1 + exp(-x))."""
    return divide(1.0, add(1.0, exp(-x)))


def _special_power(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except ValueError:  # zero to a negative power
        return math.copysign(math.inf, a) if b % 2 == 1 else math.inf


def _by_decimal(function: Callable[[Decimal], Decimal], x: Value) -> Fraction:
    with localcontext(Context(prec=_WORKING_DIGITS)):
        n, d = Fraction(x).as_integer_ratio()
        result = function(Decimal(n) / Decimal(d))
    return Fraction(_DIGITS.plus(result))
