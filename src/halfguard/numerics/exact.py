"""Arithmetic without rounding, for telling what rounding has cost.

A finite value is a ``Fraction``, or a float, which stands for exactly itself; infinity, NaN and
the two zeros are floats and follow IEEE 754. Sums, products, quotients and whole powers are exact;
irrational results are right to 100 decimal digits. Results too large or too small to be worth
carrying, beyond about ``e**±10000``, come back as infinity or zero: no format here reaches so far.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction

Value = Fraction | float

# The largest exponent that exp() works out, and the longest exact power in bits.
_LARGEST_EXP = 10_000
_LARGEST_POWER_BITS = 40_000
_DIGITS = Context(prec=100)
# tanh of a small value cancels up to 60 digits; smaller ones than 1e-60 go by the series.
_WORKING_DIGITS = 190

PI = Fraction(
    "3.14159265358979323846264338327950288419716939937510"
    "58209749445923078164062862089986280348253421170680"
)


def is_finite(x: Value) -> bool:
    """Tell whether ``x`` is neither infinite nor NaN."""
    return isinstance(x, Fraction) or math.isfinite(x)


def is_nan(x: Value) -> bool:
    """Tell whether ``x`` is NaN, for fractions of any size too."""
    return isinstance(x, float) and math.isnan(x)


def add(a: Value, b: Value) -> Value:
    """Return a + b."""
    return _combine(operator.add, a, b)


def subtract(a: Value, b: Value) -> Value:
    """Return a - b."""
    return _combine(operator.sub, a, b)


def multiply(a: Value, b: Value) -> Value:
    """Return a * b."""
    return _combine(operator.mul, a, b)


def divide(a: Value, b: Value) -> Value:
    """Return a / b; a zero divisor gives infinity or NaN, as it does in a tensor."""
    if b == 0:
        a = _stand_in(a)
        if a == 0 or math.isnan(a):
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return _combine(operator.truediv, a, b)


def negate(a: Value) -> Value:
    """Return -a."""
    return -a


def power(a: Value, b: Value) -> Value:
    """Return a ** b; a negative number to a broken power is NaN."""
    if a == 0 or not is_finite(a) or not is_finite(b):
        return _special_power(_stand_in(a), _stand_in(b))
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


def _combine(operate: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
    """Operate exactly; where the answer is a zero or not finite, IEEE floats know its sign."""
    if is_finite(a) and is_finite(b):
        result = operate(Fraction(a), Fraction(b))
        if result != 0:
            return result
    return operate(_stand_in(a), _stand_in(b))


def _stand_in(x: Value) -> float:
    """Return a float of the same sign and class (zero, finite, infinite), close to ``x``."""
    if isinstance(x, float) or x == 0:
        return float(x)
    low, high = Fraction(sys.float_info.min), Fraction(sys.float_info.max)
    magnitude = float(min(max(abs(x), low), high))
    return magnitude if x > 0 else -magnitude


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
