"""Evaluate an expression in each format, and explain the effect on training.

There is one result per format. ``stored`` is the exact value rounded once, as when a finished
number is put into a tensor. ``computed`` is the value when each step is rounded, as in code that
runs in the format. The two differ more often than people expect. ``advice`` writes the sentences.
"""

from __future__ import annotations

import math
from fractions import Fraction

from halfguard import formats
from halfguard.formats import Format
from halfguard.numerics import advice, exact, expression
from halfguard.numerics.exact import Value
from halfguard.numerics.explanation import Explanation, FormatResult, Rounding
from halfguard.numerics.expression import Node


def explain(text: str) -> Explanation:
    """Explain an expression such as ``1e-8`` or ``(1+1e-4)-1``; ``UsageError`` if it is invalid."""
    node = expression.parse(text)
    value = expression.evaluate_exactly(node)
    results = tuple(_evaluate(node, value, each) for each in formats.ALL)
    facts = Explanation(text.strip(), node, value, results)
    return Explanation(facts.text, node, value, results, tuple(advice.find_advice(facts)))


def _evaluate(node: Node, value: Value, format: Format) -> FormatResult:  # noqa: A002
    stored = format.round(value)
    is_computed = format.has_arithmetic and not node.is_literal
    computed, steps = expression.evaluate_in(node, format) if is_computed else (None, [])
    result = stored if computed is None else computed
    error, state = _relative_error(result, value), _classify(result, value, format)
    if state is Rounding.UNDERFLOW and stored != 0:
        state = Rounding.LOST
    return FormatResult(format, stored, computed, error, state, tuple(steps))


def _classify(result: float, value: Value, format: Format) -> Rounding:  # noqa: A002
    if exact.is_nan(value):
        return Rounding.NAN
    if not exact.is_finite(value):
        return Rounding.EXACT if result == value else Rounding.OVERFLOW
    if math.isnan(result):
        return Rounding.NAN if format.has_infinity else Rounding.OVERFLOW
    if math.isinf(result):
        return Rounding.OVERFLOW
    if result == value:
        return Rounding.EXACT
    if result == 0:
        return Rounding.UNDERFLOW
    return Rounding.SUBNORMAL if abs(result) < format.smallest_normal else Rounding.ROUNDED


def _relative_error(result: float, value: Value) -> float | None:
    if not exact.is_finite(value) or value == 0:
        return None
    if not math.isfinite(result):
        return math.inf
    error = abs((Fraction(result) - Fraction(value)) / Fraction(value))
    return float(error) if error < formats.FP32.largest else math.inf
