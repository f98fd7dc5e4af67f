"""Evaluate an expression in each format, and explain the effect on training.

``stored`` is the exact value rounded once, as when a finished number is put into a tensor;
``computed`` is the value when each step is rounded, as in code that runs in the format. A sentence
appears only if it applies to this value. A number does not say what it is used for, so its size
and form decide: a tiny positive number may be an eps, a very negative one a mask fill, ``w - dw``
an update.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal

from halfguard import formats
from halfguard.formats import BF16, FP16, FP32, Format
from halfguard.numerics import expression

# The formats that training code computes in; the others appear in the table only.
_TRAINING = (FP16, BF16, FP32)
_SHOWN_ERROR = 0.01  # the relative error from which the steps are shown


@dataclass(frozen=True)
class Row:
    """The value of an expression in one format."""

    format: Format
    stored: float
    computed: float | None
    """None for a plain number, which is not computed, and for a format without arithmetic."""
    error: float | None
    """Relative to the exact value; None if that is zero or not finite."""
    state: str
    steps: list[tuple[str, float]]

    @property
    def value(self) -> float:
        return self.stored if self.computed is None else self.computed


@dataclass(frozen=True)
class Explanation:
    """An expression, its exact value, its value in every format, and advice for training."""

    text: str
    tree: ast.expr
    value: Decimal
    rows: dict[Format, Row]

    @property
    def is_literal(self) -> bool:
        return expression.is_literal(self.tree)

    @property
    def training_rows(self) -> list[Row]:
        return [self.rows[f] for f in _TRAINING]

    @property
    def sentences(self) -> list[str]:
        """What to know about this value in training, the most specific first."""
        if not self.value.is_finite():
            return ["One NaN, or inf - inf or 0 * inf, makes a sum, mean or gradient norm NaN."]
        rules = (_as_eps, _as_gradient, _as_mask, _as_update, _lost_in_steps, _overflow)
        found = [sentence for rule in (*rules, _as_integer) for sentence in rule(self)]
        return found or [_precision(self)]


def explain(text: str) -> Explanation:
    """Explain an expression such as ``1e-8`` or ``(1+1e-4)-1``; ``UsageError`` if it is invalid."""
    text = text.strip()
    tree = expression.parse(text)
    value = expression.evaluate_exactly(tree, text)
    return Explanation(text, tree, value, {f: _row(tree, text, value, f) for f in formats.ALL})


def show_number(x: float | Decimal, digits: int = 9) -> str:
    """Return ``x`` as text with at most ``digits`` significant digits."""
    if not math.isfinite(x):
        return str(float(x))
    number = Context(prec=digits).create_decimal(Decimal(x)).normalize() if x else Decimal(0)
    return f"{number:f}" if -4 <= number.adjusted() < 15 else f"{number:e}"


def percent(error: float | None) -> str:
    """Return a relative error as a percentage; empty if it is None or infinite."""
    if error is None or math.isinf(error):
        return ""
    return f"{100 * error:.0f}%" if error > 0.1 else f"{100 * error:.2g}%"


def _row(tree: ast.expr, text: str, exact: Decimal, f: Format) -> Row:
    stored = expression.round_to(f, exact)
    computed, steps = None, list[tuple[str, float]]()
    if f.has_arithmetic and not expression.is_literal(tree):
        computed, steps = expression.evaluate_in(tree, text, f)
    value = stored if computed is None else computed
    error = None
    if exact.is_finite() and exact:
        error = float(abs(Decimal(value) / exact - 1)) if math.isfinite(value) else math.inf
    return Row(f, stored, computed, error, _state(value, stored, exact, f), steps)


def _state(value: float, stored: float, exact: Decimal, f: Format) -> str:
    if exact.is_nan() or (math.isnan(value) and f.has_infinity):
        return "NaN"
    if value == exact:
        return "exact"
    if not math.isfinite(value):
        return f"overflow to {'inf' if f.has_infinity else f'NaN or {f.largest:g}'}"
    if value == 0:
        return "0: lost in a step" if stored else "underflow to 0"
    return "subnormal" if abs(value) < f.smallest_normal else "rounded"


def _as_eps(facts: Explanation) -> Iterator[str]:
    is_power = isinstance(facts.tree, ast.BinOp) and isinstance(facts.tree.op, ast.Pow)
    if not (facts.is_literal or is_power) or not 0 < facts.value < Decimal("1e-3"):
        return
    for row in facts.training_rows:
        name, f, text = row.format.name, row.format, facts.text
        if row.stored == 0:
            yield (
                f"As an eps: it is 0 in {name}, so log(x + {text}) is still -inf at x = 0,"
                f" and clamp(min={text}) keeps the zeros. An eps survives in {name} if"
                f" it is larger than {show_number(f.underflow_threshold, 3)}."
            )
        if row.stored * f.overflow_threshold <= 1:
            smallest = 1 / f.overflow_threshold
            yield (
                f"As a divisor: 1 / (x + {text}) is inf at x = 0 in {name}. It is finite for"
                f" an eps of about {show_number(smallest + f.ulp(smallest), 3)} or more."
            )


def _as_gradient(facts: Explanation) -> Iterator[str]:
    if not facts.is_literal or abs(facts.value) < Decimal("1e-30"):
        return  # no useful loss scale lifts what is smaller

    def scale(limit: float) -> str:
        """Return the smallest power of two that lifts the value above ``limit``."""
        return f"2**{math.frexp(Decimal(limit) / abs(facts.value))[1]}"

    state = facts.rows[FP16].state
    if state == "subnormal":
        yield (
            "As a gradient: it is subnormal in FP16, and rounded to a multiple of"
            f" {show_number(FP16.smallest_subnormal, 3)}. A loss scale of"
            f" {scale(FP16.smallest_normal)} makes it a normal number."
        )
    elif state == "underflow to 0":
        yield (
            f"As a gradient: it becomes 0 in FP16. A loss scale of"
            f" {scale(FP16.underflow_threshold)} makes it non-zero,"
            f" and {scale(FP16.smallest_normal)} makes it a normal number."
        )


def _as_mask(facts: Explanation) -> Iterator[str]:
    refusing = [f.dtype or "" for f in _TRAINING if facts.value < -f.largest]
    if not facts.is_literal or not refusing:
        return
    cast = show_number(facts.rows[FP16].stored)
    warning = " A row of only -inf makes softmax NaN." if cast == "-inf" else ""
    yield (
        f"As a mask fill: masked_fill raises an error on tensors of {_list(refusing, 'or')}, and a"
        f" cast to FP16 gives {cast}.{warning} Use torch.finfo(x.dtype).min,"
        f" which is {show_number(-FP16.largest)} in FP16."
    )


def _as_integer(facts: Explanation) -> Iterator[str]:
    changed = [row.format for row in facts.training_rows if row.state == "rounded"]
    if facts.is_literal and changed and 0 < facts.value < 2**63 and facts.value % 1 == 0:
        limits = [f"{f.largest_exact_integer} in {f.name}" for f in changed]
        yield (
            f"As a count, an index or a position: it changes in {_list(f.name for f in changed)}."
            f" All integers are exact up to {_list(limits)}. Use an integer dtype."
        )


def _as_update(facts: Explanation) -> Iterator[str]:
    match facts.tree:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if (
            expression.is_literal(left) and expression.is_literal(right)
        ):
            w, dw = (expression.evaluate_exactly(part, facts.text) for part in (left, right))
        case _:
            return
    lost = [f for f in _TRAINING if facts.rows[f].computed == expression.round_to(f, w)]
    if not lost or not 0 < abs(dw) < abs(w):
        return
    grows = (dw > 0) == (w > 0) if isinstance(op, ast.Add) else (dw > 0) != (w > 0)
    needed = [f"{show_number(_smallest_change(f, w, grows), 3)} in {f.name}" for f in lost]
    yield (
        f"As an update: {facts.text[: left.end_col_offset]} does not change in"
        f" {_list(f.name for f in lost)}. In this direction an update must be larger than"
        f" {_list(needed)}. {'FP32 loses it too.' if FP32 in lost else 'Keep FP32 master weights.'}"
    )


def _lost_in_steps(facts: Explanation) -> Iterator[str]:
    """Show the steps where rounding them loses more than rounding the result would."""
    paths: dict[str, list[str]] = {}
    for row in facts.training_rows:
        fits = math.isfinite(row.stored) and row.stored != 0
        if len(row.steps) > 1 and fits and (row.error or 0) > _SHOWN_ERROR:
            path = ", then ".join(f"{text} = {show_number(x, 5)}" for text, x in row.steps)
            paths.setdefault(path, []).append(row.format.name)
    for path, names in paths.items():
        yield f"Step by step in {_list(names)}: {path}. The exact result would fit."


def _overflow(facts: Explanation) -> Iterator[str]:
    is_fill = facts.is_literal and facts.value < 0
    beyond = [f for f in _TRAINING if math.isinf(facts.rows[f].stored)]
    if beyond and not is_fill:
        limits = [f"{f.name} (largest value {show_number(f.largest, 5)})" for f in beyond]
        yield f"Its magnitude is too large for {_list(limits)}: it becomes inf."
    if beyond == [FP16] and not is_fill:
        yield (
            f"FP16 gives inf from {show_number(FP16.overflow_threshold)} up. BF16 has the range"
            f" of FP32 and holds {show_number(facts.rows[BF16].stored)}."
        )


def _precision(facts: Explanation) -> str:
    rows = facts.training_rows
    if all(row.state == "exact" for row in rows):
        return "FP16, BF16 and FP32 hold it exactly."
    lost = [row for row in rows if not math.isfinite(row.value) or row.value == 0 != facts.value]
    if lost:
        return f"It becomes {_list(f'{show_number(r.value)} in {r.format.name}' for r in lost)}."
    errors = (f"{percent(row.error)} in {row.format.name}" for row in rows)
    return f"Only digits are lost. The error is {_list(errors)}."


def _smallest_change(f: Format, w: Decimal, grows: bool) -> float:
    """Return half the distance to the next value; an update must be larger than this."""
    start = expression.round_to(f, w)
    closer = not grows and math.frexp(start)[0] in (0.5, -0.5) and abs(start) > f.smallest_normal
    return f.ulp(start) / (4 if closer else 2)


def _list(parts: Iterable[str], conjunction: str = "and") -> str:
    *first, last = parts
    return f"{', '.join(first)} {conjunction} {last}" if first else last
