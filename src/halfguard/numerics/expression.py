"""Arithmetic as people type it, evaluated without rounding and as a format would compute it.

Python's own parser reads the text, and only the numbers, names and operations listed here have a
value; nothing is executed. Literals keep their decimal value: ``1e-8`` is 10**-8, not the nearest
float64. The same tree is evaluated with 200 digits, and with every literal and every result
rounded to a format. So ``(1+1e-4)-1`` is 1e-4, and 0 in FP16.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable
from decimal import Context, Decimal, Overflow, Underflow, localcontext
from fractions import Fraction

from halfguard.errors import UsageError
from halfguard.formats import Format

_LONGEST_TEXT = 200
# No traps: infinity and NaN are values, as in a tensor. 200 digits hold every sum of two FP32
# numbers; no format reaches 10**±6000, and a short text must not cause long work.
_EXACT = Context(prec=200, Emax=6000, Emin=-6000, traps=[])


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    return base**exponent if exponent else Decimal(1)  # decimal has no value for 0**0


def _sigmoid(x: Decimal) -> Decimal:
    return 1 / (1 + x.copy_negate().exp())


_OPERATORS: dict[type[ast.AST], Callable[..., Decimal]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[[Decimal], Decimal]] = {
    "sqrt": Decimal.sqrt,
    "exp": Decimal.exp,
    "log": Decimal.ln,
    "sigmoid": _sigmoid,
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
