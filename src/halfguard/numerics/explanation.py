"""The value of an expression in every format, as plain data, and functions that write numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from fractions import Fraction

from halfguard.formats import Format
from halfguard.numerics import exact
from halfguard.numerics.exact import Value
from halfguard.numerics.expression import Node, RoundedStep


class Rounding(StrEnum):
    """The effect of a format on a value."""

    EXACT = "exact"
    ROUNDED = "rounded"
    SUBNORMAL = "subnormal"
    """Below the smallest normal value: rounded to a multiple of the smallest subnormal."""
    UNDERFLOW = "underflow"
    """Too small for the format: it becomes zero."""
    OVERFLOW = "overflow"
    """The result or a step is too large: infinite, or NaN where there is no infinity."""
    LOST = "lost"
    """Zero, although the format could hold the value: it was lost in a step."""
    NAN = "nan"


@dataclass(frozen=True)
class FormatResult:
    """The value of an expression in one format."""

    format: Format
    stored: float
    computed: float | None
    """None for a plain number, which is not computed, and for a format without arithmetic."""
    relative_error: float | None
    """Error of ``computed``, else of ``stored``; None if the exact value is zero or not finite."""
    state: Rounding
    steps: tuple[RoundedStep, ...] = ()

    @property
    def value(self) -> float:
        """The computed value, or the stored one if nothing is computed."""
        return self.stored if self.computed is None else self.computed


@dataclass(frozen=True)
class Explanation:
    """An expression, its exact value, its value in every format, and advice for training."""

    text: str
    node: Node
    value: Value
    results: tuple[FormatResult, ...]
    sentences: tuple[str, ...] = ()

    def result_in(self, format: Format) -> FormatResult:  # noqa: A002
        return next(result for result in self.results if result.format is format)


def show_number(x: Value, digits: int = 9) -> str:
    """Return ``x`` as text with at most ``digits`` significant digits."""
    if not exact.is_finite(x):
        return str(x)
    n, d = Fraction(x).as_integer_ratio()
    context = Context(prec=digits)
    number = context.divide(Decimal(n), Decimal(d)).normalize(context)
    return f"{number:f}" if -4 <= number.adjusted() < 15 else f"{number:e}"


def percent(error: float | None) -> str:
    """Return a relative error as a percentage; empty if it is None or infinite."""
    if error is None or math.isinf(error):
        return ""
    return f"{100 * error:.0f}%" if error > 0.1 else f"{100 * error:.2g}%"
