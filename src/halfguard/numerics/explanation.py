"""An expression and its fate in every format, as plain data, and how its numbers are written."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from fractions import Fraction

from halfguard.formats import Format
from halfguard.numerics import exact
from halfguard.numerics.exact import Value
from halfguard.numerics.expression import Node, Step


class State(StrEnum):
    """What has become of a value."""

    EXACT = "exact"
    ROUNDED = "rounded"
    SUBNORMAL = "subnormal"
    """Too small for all its bits: rounded to a multiple of the smallest value."""
    UNDERFLOW = "underflow"
    """Too small for the format: zero."""
    OVERFLOW = "overflow"
    """Too large, in the end or on the way: infinite, or NaN where there is no infinity."""
    LOST = "lost"
    """Zero, although the format could hold the value: a step on the way has lost it."""
    NAN = "nan"


@dataclass(frozen=True)
class Row:
    """The fate of the expression in one format."""

    format: Format
    stored: float
    computed: float | None
    """None for a number, which needs no computing, and for a format without arithmetic."""
    relative_error: float | None
    """Of ``computed``, else of ``stored``; None where the exact value is zero or not finite."""
    state: State
    steps: tuple[Step, ...] = ()

    @property
    def result(self) -> float:
        """What the format ends up with."""
        return self.stored if self.computed is None else self.computed


@dataclass(frozen=True)
class Explanation:
    """An expression, its exact value, its fate in every format, and what follows from that."""

    text: str
    node: Node
    value: Value
    rows: tuple[Row, ...]
    sentences: tuple[str, ...] = ()

    def row(self, format: Format) -> Row:  # noqa: A002
        """Return the row of one format."""
        return next(row for row in self.rows if row.format is format)


def show(x: Value, digits: int = 9) -> str:
    """Return ``x`` with at most so many significant digits, whatever its size."""
    if not exact.is_finite(x):
        return str(x)
    n, d = Fraction(x).as_integer_ratio()
    context = Context(prec=digits)
    number = context.divide(Decimal(n), Decimal(d)).normalize(context)
    return f"{number:f}" if -4 <= number.adjusted() < 15 else f"{number:e}"


def percent(error: float | None) -> str:
    """Return a relative error as a person reads it; nothing where there is none to speak of."""
    if error is None or math.isinf(error):
        return ""
    return f"{100 * error:.0f}%" if error > 0.1 else f"{100 * error:.2g}%"
