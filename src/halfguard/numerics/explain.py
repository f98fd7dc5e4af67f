"""What an expression becomes in each format, and what that means for training.

One row a format. ``stored`` is the exact value rounded once, as when a finished number is put into
a tensor; ``computed`` is what comes out when each step is rounded, as in code that runs in the
format. The two differ more often than people expect. Sentences are made by ``meaning``.
"""

from __future__ import annotations

import math
from fractions import Fraction

from halfguard import formats
from halfguard.formats import Format
from halfguard.numerics import exact, expression, meaning
from halfguard.numerics.exact import Value
from halfguard.numerics.explanation import Explanation, Row, State
from halfguard.numerics.expression import Node


def explain(text: str) -> Explanation:
    """Explain an expression such as ``1e-8`` or ``(1+1e-4)-1``; ``UsageError`` if it is none."""
    node = expression.parse(text)
    value = expression.evaluate_exactly(node)
    rows = tuple(_row(node, value, each) for each in formats.ALL)
    facts = Explanation(text.strip(), node, value, rows)
    return Explanation(facts.text, node, value, rows, tuple(meaning.sentences(facts)))


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
