"""Parse typed arithmetic, and evaluate it exactly and as a format would compute it.

Python's own parser reads the text, and only the numbers, names and operations listed here become
part of the tree; nothing is executed. Literals keep their exact decimal value: ``1e-8`` is 10**-8,
not the nearest float64. The same tree is then evaluated twice: exactly, and with every literal and
every result rounded to a format. So ``(1+1e-4)-1`` is exactly 1e-4, and 0 in FP16.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from halfguard.errors import UsageError
from halfguard.formats import Format
from halfguard.numerics import exact
from halfguard.numerics.exact import Value

# Limits on the work that an untrusted expression can cause.
_LONGEST_TEXT = 200
_DEEPEST_TREE = 40
_LARGEST_DECIMAL_EXPONENT = 1000
_RANGE_BITS = 20_000  # exact values stay within 2**±20000

_OPERATORS: dict[type[ast.AST], tuple[str, Callable[..., Value]]] = {
    ast.Add: ("+", exact.add),
    ast.Sub: ("-", exact.subtract),
    ast.Mult: ("*", exact.multiply),
    ast.Div: ("/", exact.divide),
    ast.Pow: ("**", exact.power),
    ast.USub: ("negate", operator.neg),
}
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "sqrt": exact.sqrt,
    "exp": exact.exp,
    "log": exact.log,
    "log2": exact.log2,
    "tanh": exact.tanh,
    "sigmoid": exact.sigmoid,
}
_NAMES: dict[str, Value] = {
    "pi": exact.PI,
    "e": exact.exp(1.0),
    "inf": math.inf,
    "nan": math.nan,
}
ALLOWED = f"Allowed: numbers, + - * / **, parentheses, {', '.join([*_NAMES, *_FUNCTIONS])}."


@dataclass(frozen=True)
class Node:
    """One literal or operation; ``text`` is its source text."""

    kind: str
    """``"literal"``, an operator such as ``"+"``, ``"negate"``, or the name of a function."""
    text: str
    operate: Callable[..., Value]
    operands: tuple[Node, ...] = ()

    @property
    def is_literal(self) -> bool:
        """True for a number, with or without a sign: nothing is computed."""
        if self.kind == "negate":
            return self.operands[0].is_literal
        return self.kind == "literal"


@dataclass(frozen=True)
class RoundedStep:
    """One operation as a format computes it: the operands are already rounded."""

    text: str
    before_rounding: Value
    result: float


def parse(text: str) -> Node:
    """Parse an expression; a ``UsageError`` says what is wrong, where, and what is allowed."""
    text = text.strip()
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
            body = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        column = (getattr(error, "offset", None) or 1) - 1
        raise _error(text, column, "this is not an arithmetic expression") from None
    return _build(body, text, depth=1)


def evaluate_exactly(node: Node) -> Value:
    """Return the value of the expression without rounding."""
    operands = [evaluate_exactly(operand) for operand in node.operands]
    value = node.operate(*operands)
    if all(exact.is_finite(x) and x != 0 for x in operands) and _is_out_of_range(node.kind, value):
        raise UsageError(
            f"{node.text} is too large or too small to be computed exactly.",
            cure=f"Values must stay within 2**±{_RANGE_BITS}; the largest format ends below 2**128.",
        )
    return value


def evaluate_in(node: Node, format: Format) -> tuple[float, list[RoundedStep]]:  # noqa: A002
    """Return the value that code running in ``format`` computes, and its steps.

    Every literal is rounded first. Every operation is exact on its rounded operands, then rounded.
    """
    steps: list[RoundedStep] = []

    def compute(node: Node) -> float:
        value = node.operate(*[compute(operand) for operand in node.operands])
        result = format.round(value)
        if not node.is_literal:
            steps.append(RoundedStep(node.text, value, result))
        return result

    return compute(node), steps


def _build(tree: ast.expr, text: str, depth: int) -> Node:
    if depth > _DEEPEST_TREE:
        raise UsageError(f"the expression is nested deeper than {_DEEPEST_TREE} operations.")
    # In printable ASCII the parser's byte offsets are character offsets.
    own = text[tree.col_offset : tree.end_col_offset]
    match tree:
        case ast.Constant(value=int() | float()) if not isinstance(tree.value, bool):
            value = _literal(own, text, tree.col_offset)
            return Node("literal", own, lambda: value)
        case ast.Name(id=name) if name in _NAMES:
            return Node("literal", own, lambda: _NAMES[name])
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _build(operand, text, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            parts, (kind, operate) = [operand], _OPERATORS[ast.USub]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            parts, (kind, operate) = [left, right], _OPERATORS[type(op)]
        case ast.Call(func=ast.Name(id=kind), args=[argument], keywords=[]) if kind in _FUNCTIONS:
            parts, operate = [argument], _FUNCTIONS[kind]
        case _:
            raise _error(text, tree.col_offset, f"{own!r} is not known")
    return Node(kind, own, operate, tuple(_build(part, text, depth + 1) for part in parts))


def _literal(own: str, text: str, column: int) -> Fraction:
    exponent = re.search(r"[eE]([+-]?[\d_]+)$", own)
    if own[:2].lower() in ("0x", "0o", "0b"):
        return Fraction(int(own, base=0))
    if exponent and abs(int(exponent[1])) > _LARGEST_DECIMAL_EXPONENT:
        raise _error(
            text, column, f"the exponent of {own} is larger than {_LARGEST_DECIMAL_EXPONENT}"
        )
    return Fraction(own.replace("_", ""))


def _is_out_of_range(kind: str, value: Value) -> bool:
    if not exact.is_finite(value) or value == 0:
        # For finite, non-zero operands only these return infinity or zero, beyond their limits.
        return kind in ("exp", "**", "sigmoid") and not math.isnan(value)
    n, d = value.as_integer_ratio()
    return abs(n.bit_length() - d.bit_length()) > _RANGE_BITS


def _error(text: str, column: int, what: str, hint: str = "") -> UsageError:
    return UsageError(f"{what}, at character {column + 1} of {text!r}.", cure=hint + ALLOWED)
