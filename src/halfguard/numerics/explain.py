"""What an expression becomes in each format, and what that means for training.

One row a format. ``stored`` is the exact value rounded once, as when a finished number is put into
a tensor; ``computed`` is what comes out when each step is rounded, as in code that runs in the
format. The two differ more often than people expect. Sentences are made by ``meaning``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from fractions import Fraction

from halfguard.numerics import exact, expression, formats
from halfguard.numerics.exact import Value
from halfguard.numerics.expression import Node, Step
from halfguard.numerics.formats import Format


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


def explain(text: str) -> Explanation:
    """Explain an expression such as ``1e-8`` or ``(1+1e-4)-1``; ``UsageError`` if it is none."""
    from halfguard.numerics import meaning  # noqa: PLC0415  (it reads the classes above)

    node = expression.parse(text)
    value = expression.evaluate_exactly(node)
    rows = tuple(_row(node, value, each) for each in formats.ALL)
    facts = Explanation(text.strip(), node, value, rows)
    return Explanation(facts.text, node, value, rows, tuple(meaning.sentences(facts)))


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


def _row(node: Node, value: Value, format: Format) -> Row:  # noqa: A002
    stored = format.round(value)
    if node.is_literal or not format.has_arithmetic:
        return Row(
            format, stored, None, _relative_error(stored, value), _state(stored, value, format)
        )
    computed, steps = expression.evaluate_in(node, format)
    state = _state(computed, value, format)
    if state is State.UNDERFLOW and stored != 0:
        state = State.LOST
    return Row(format, stored, computed, _relative_error(computed, value), state, tuple(steps))


def _state(result: float, value: Value, format: Format) -> State:  # noqa: A002
    if not exact.is_finite(value):
        same = result == value or (math.isnan(result) and exact.is_nan(value))
        return State.NAN if exact.is_nan(value) else State.EXACT if same else State.OVERFLOW
    if math.isnan(result):
        return State.NAN if format.has_infinity else State.OVERFLOW
    if math.isinf(result):
        return State.OVERFLOW
    if result == value:
        return State.EXACT
    if result == 0:
        return State.UNDERFLOW
    return State.SUBNORMAL if abs(result) < format.smallest_normal else State.ROUNDED


def _relative_error(result: float, value: Value) -> float | None:
    if not exact.is_finite(value) or value == 0:
        return None
    if not math.isfinite(result):
        return math.inf
    error = abs((Fraction(result) - Fraction(value)) / Fraction(value))
    return float(error) if error < formats.FP32.largest else math.inf
