"""Evaluate an expression in each format, and explain the effect on training.

``stored`` is the exact value rounded once, as when a finished number is put into a tensor;
``computed`` is the value when each step is rounded, as in code that runs in the format. A sentence
appears only if it applies to this value. A number does not say what it is used for, so its size
and form decide: a tiny positive number may be an eps, a very negative one a mask fill, ``w - dw``
an update.

Python's own parser reads the text, and only the numbers, names and operations listed here have a
value; nothing is executed. Literals keep their decimal value: ``1e-8`` is 10**-8, not the nearest
float64. The same tree is evaluated with 200 digits, and with every literal and every result
rounded to a format. So ``(1+1e-4)-1`` is 1e-4, and 0 in FP16.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, Overflow, Underflow, localcontext
from fractions import Fraction

from halfguard import formats
from halfguard.errors import UsageError
from halfguard.formats import BF16, FP16, FP32, Format

_LONGEST_TEXT = 200
# No traps: infinity and NaN are values, as in a tensor. 200 digits hold every sum of two FP32
# numbers; no format reaches 10**±6000, and a short text must not cause long work.
_EXACT = Context(prec=200, Emax=6000, Emin=-6000, traps=[])


_OPERATORS: dict[type[ast.AST], Callable[..., Decimal]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda base, power: base**power if power else Decimal(1),  # decimal has no 0**0
}
_FUNCTIONS: dict[str, Callable[[Decimal], Decimal]] = {
    "sqrt": Decimal.sqrt,
    "exp": Decimal.exp,
    "log": Decimal.ln,
    "sigmoid": lambda x: 1 / (1 + x.copy_negate().exp()),
}
_NAMES = {"inf": Decimal("inf"), "nan": Decimal("nan")}
ALLOWED = f"Allowed: numbers, + - * / **, parentheses, {', '.join([*_NAMES, *_FUNCTIONS])}."


def parse(text: str) -> ast.expr:
    """Parse an expression; a ``UsageError`` says what is wrong, where, and what is allowed."""
    if not text:
        raise UsageError("the expression is empty.", cure=ALLOWED)
    if len(text) > _LONGEST_TEXT:
        raise UsageError(
            f"the expression has {len(text)} characters; at most {_LONGEST_TEXT} are allowed."
        )
    invalid = re.search(r"[^\w\s.+\-*/()]|[^\x20-\x7e]", text)
    if invalid:
        hint = "A power is written **. " if invalid[0] == "^" else ""
        raise _error(text, invalid.start(), f"{invalid[0]!r} is not allowed", hint)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "1or 2" causes a SyntaxWarning before it is refused
            return ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        column = (getattr(error, "offset", None) or 1) - 1
        raise _error(text, column, "this is not an arithmetic expression") from None


def is_literal(tree: ast.expr) -> bool:
    """Return whether this is a number, with or without a sign: nothing is computed."""
    if isinstance(tree, ast.UnaryOp):
        return is_literal(tree.operand)
    return isinstance(tree, ast.Constant | ast.Name)


def evaluate_exactly(tree: ast.expr, text: str) -> Decimal:
    """Return the value without rounding; raise ``UsageError`` where it is out of all bounds."""
    with localcontext(_EXACT) as context:
        context.clear_flags()
        value = _evaluate(tree, text, lambda x, _: x)
        if context.flags[Overflow] or context.flags[Underflow]:
            raise UsageError(
                f"{text} is too large or too small to be computed exactly.",
                cure=f"Values must stay within 10**±{_EXACT.Emax}; FP32 ends below 10**39.",
            )
    return value


def evaluate_in(tree: ast.expr, text: str, format: Format) -> tuple[float, list[tuple[str, float]]]:  # noqa: A002
    """Return the value that code running in ``format`` computes, and each step with its result.

    Every literal is rounded first. Every operation is exact on its rounded operands, then rounded.
    """
    steps: list[tuple[str, float]] = []

    def round_step(x: Decimal, part: ast.expr) -> Decimal:
        result = round_to(format, x)
        if not is_literal(part):
            steps.append((_own_text(part, text), result))
        return Decimal(result)

    with localcontext(_EXACT):
        return float(_evaluate(tree, text, round_step)), steps


def round_to(format: Format, x: Decimal) -> float:  # noqa: A002
    """Return the value of ``format`` nearest to ``x``."""
    return format.round(Fraction(x) if x.is_finite() and x else float(x))  # a float keeps -0


def _evaluate(tree: ast.expr, text: str, then: Callable[[Decimal, ast.expr], Decimal]) -> Decimal:
    """Return the value of a tree; ``then`` maps the value of every part."""
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            value = Decimal(number)
        case ast.Constant(value=float()):
            value = +Decimal(_own_text(tree, text))
        case ast.Name(id=name) if name in _NAMES:
            value = _NAMES[name]
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _evaluate(operand, text, then)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _evaluate(operand, text, then).copy_negate()
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            value = _OPERATORS[type(op)](_evaluate(left, text, then), _evaluate(right, text, then))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            value = _FUNCTIONS[name](_evaluate(argument, text, then))
        case _:
            raise _error(text, tree.col_offset, f"{_own_text(tree, text)!r} is not known")
    return then(value, tree)


def _own_text(tree: ast.expr, text: str) -> str:
    # In printable ASCII the parser's byte offsets are character offsets.
    return text[tree.col_offset : tree.end_col_offset]


def _error(text: str, column: int, what: str, hint: str = "") -> UsageError:
    return UsageError(f"{what}, at character {column + 1} of {text!r}.", cure=hint + ALLOWED)


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
        return is_literal(self.tree)

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
    tree = parse(text)
    value = evaluate_exactly(tree, text)
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
    stored = round_to(f, exact)
    computed, steps = None, list[tuple[str, float]]()
    if f.has_arithmetic and not is_literal(tree):
        computed, steps = evaluate_in(tree, text, f)
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
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if is_literal(
            left
        ) and is_literal(right):
            w, dw = (evaluate_exactly(part, facts.text) for part in (left, right))
        case _:
            return
    lost = [f for f in _TRAINING if facts.rows[f].computed == round_to(f, w)]
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
    start = round_to(f, w)
    closer = not grows and math.frexp(start)[0] in (0.5, -0.5) and abs(start) > f.smallest_normal
    return f.ulp(start) / (4 if closer else 2)


def _list(parts: Iterable[str], conjunction: str = "and") -> str:
    *first, last = parts
    return f"{', '.join(first)} {conjunction} {last}" if first else last
