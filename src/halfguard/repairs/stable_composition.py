"""Write the stable form of a composition into the source, also if its parts were assigned to names before.

``p = torch.sigmoid(x)`` and later ``torch.log(p + 1e-8)`` becomes
``torch.nn.functional.logsigmoid(x.float())``. Where the source is not certain, there is no patch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from halfguard.repairs.source_file import SourceFile

_TORCH = (
    "torch",
    "F",
    "functional",
    "nn.functional",
    "torch.nn.functional",
    "torch.linalg",
    "linalg",
)


def patch_line(file: SourceFile, line: int, *, cast: str = "") -> bool:
    """Rewrite the compositions that end on a line; return False if none is certain.

    ``cast`` is appended to each, for a result in another dtype.
    """
    done: list[ast.expr] = []
    operations = (node for node in ast.walk(file.tree) if isinstance(node, ast.Call | ast.BinOp))
    for node in operations:  # outer ones first
        is_around = node.lineno <= line <= (node.end_lineno or 0)
        if not is_around or any(node in ast.walk(outer) for outer in done):
            continue
        new = _Composition(file, line).stable(node)
        if new:
            file.replace(node, new + cast)
            done.append(node)
    return bool(done)


@dataclass(frozen=True)
class _Squares:
    x: str
    call: ast.Call  # of sum or mean, or of torch's own norm
    eps: tuple[str, ...] = ()

    @property
    def is_mean(self) -> bool:
        return _name(self.call) == "mean"

    @property
    def is_norm(self) -> bool:
        return _name(self.call) in ("norm", "vector_norm")


class _Composition:
    """Reads one composition in the source."""

    def __init__(self, file: SourceFile, line: int) -> None:
        self.file, self.line = file, line

    def stable(self, node: ast.expr) -> str:
        """Return an expression in its stable form; empty if it is no composition."""
        if isinstance(node, ast.Call) and _name(node) == "log" and len(_arguments(node)) == 1:
            return self._log(_arguments(node)[0])
        if isinstance(node, ast.Call) and _name(node) == "log1p" and len(_arguments(node)) == 1:
            inner = self._follow(_arguments(node)[0])
            return self._of_exp(inner)
        normalized = self._normalized(node) or self._softmax(node)
        if normalized:
            return normalized
        root = self._root(node)
        if root is None or root.is_norm:
            return ""
        return self._length(root)

    def _follow(self, value: ast.expr) -> ast.expr:
        """Return what a name stands for, and what a cast is applied to."""
        while True:
            if isinstance(value, ast.Name):
                found = self.file.assigned(value.id, self.line)
                if found is None or not self.file.is_unchanged(found, self.line):
                    return value
                value = found
            elif isinstance(value, ast.Call) and _name(value) in ("float", "to", "half"):
                value = _arguments(value)[0]
            else:
                return value

    def _without_eps(self, value: ast.expr) -> tuple[ast.expr, tuple[str, ...]]:
        """Return an expression without the numbers that are added to it, and those numbers."""
        value, eps = self._follow(value), list[str]()
        while True:
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                left, right = value.left, value.right
                term, rest = (left, right) if self._is_number(left) else (right, left)
                if not self._is_number(term):
                    return value, tuple(eps)
                eps.append(self.file.source(term))
                value = self._follow(rest)
            elif isinstance(value, ast.Call) and _name(value) in ("clamp", "clamp_min", "clip"):
                value = self._follow(_arguments(value)[0])
            else:
                return value, tuple(eps)

    def _is_number(self, node: ast.expr) -> bool:
        """Return whether an expression is a number, or a name that looks like one."""
        if isinstance(node, ast.Attribute):
            return "eps" in node.attr.lower()
        if isinstance(node, ast.Name):
            return "eps" in node.id.lower()
        return isinstance(node, ast.Constant) and isinstance(node.value, int | float)

    def _log(self, argument: ast.expr) -> str:
        plain = self._follow(argument)
        if isinstance(plain, ast.BinOp) and isinstance(plain.op, ast.Add):
            for one, other in ((plain.left, plain.right), (plain.right, plain.left)):
                if isinstance(one, ast.Constant) and one.value == 1:
                    return self._of_exp(self._follow(other))
        value, _ = self._without_eps(argument)
        total = self._sum_of_exp(value)
        if total is not None:
            x, named = total
            return f"torch.logsumexp({', '.join([x, *(f'{k}={v}' for k, v in named.items())])})"
        softmax = self._softmax(value)
        if softmax:
            return softmax.replace("torch.softmax(", "torch.log_softmax(", 1)
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
            is_one = isinstance(value.left, ast.Constant) and value.left.value == 1
            value, _ = self._without_eps(value.right)
            logits = self._argument_of(value, "sigmoid") if is_one else ""
            return f"torch.nn.functional.logsigmoid(-{logits})" if logits else ""
        logits = self._argument_of(value, "sigmoid")
        if logits:
            return f"torch.nn.functional.logsigmoid({logits})"
        logits = self._argument_of(value, "softmax")
        if not logits or not isinstance(value, ast.Call):
            return ""
        rest = [self.file.source(arg) for arg in _arguments(value)[1:]]
        rest += [f"{k.arg}={self.file.source(k.value)}" for k in value.keywords if k.arg == "dim"]
        return f"torch.log_softmax({', '.join([logits, *rest])})" if rest else ""

    def _sum_of_exp(self, value: ast.expr) -> tuple[str, dict[str, str]] | None:
        """Return x in float32 and the dimensions of a sum of exp(x)."""
        value = self._follow(value)
        if not isinstance(value, ast.Call) or _name(value) != "sum":
            return None
        x = self._argument_of(self._follow(_arguments(value)[0]), "exp")
        named = dict(part.split("=", 1) for part in self._dimensions(_Squares("", value)))
        return (x, named) if x and "dim" in named else None

    def _softmax(self, node: ast.expr) -> str:
        """Return exp(x) / sum(exp(x)) as one operation."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            return ""
        total = self._sum_of_exp(node.right)
        x = "" if total is None else self._argument_of(self._follow(node.left), "exp")
        if total is None or x != total[0] or total[1].get("keepdim") != "True":
            return ""
        return f"torch.softmax({x}, {total[1]['dim']})"

    def _of_exp(self, value: ast.expr) -> str:
        x = self._argument_of(value, "exp")
        return f"torch.nn.functional.softplus({x})" if x else ""

    def _argument_of(self, value: ast.expr, name: str) -> str:
        """Return the argument of a call in float32; empty if it is another call."""
        if not isinstance(value, ast.Call) or _name(value) != name or not _arguments(value):
            return ""
        if (
            self.file.source(_arguments(value)[0]) == "self"
        ):  # a module, whose dimension is elsewhere
            return ""
        return self._wide(_arguments(value)[0])

    def _wide(self, x: ast.expr) -> str:
        """Return an expression in float32, as it can be written on this line."""
        calls = any(isinstance(node, ast.Call) for node in ast.walk(x))
        if x.lineno != self.line and calls and not self._is_same_statement(x):
            text = self.file.hoist(x)
        elif self.file.is_unchanged(x, self.line) or self._is_same_statement(x):
            text = self.file.source(x)
        else:
            return ""
        simple = isinstance(x, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        return f"{text}.float()" if simple or text.isidentifier() else f"({text}).float()"

    def _is_same_statement(self, x: ast.expr) -> bool:
        found = self.file.statement_at(self.line)
        return found is not None and self.file.statement_at(x.lineno) is found

    def _square(self, value: ast.expr) -> ast.expr | None:
        """Return x of x * x, x ** 2, x.pow(2) or x.square()."""
        value = self._follow(value)
        if isinstance(value, ast.BinOp):
            left, right = self.file.source(value.left), self.file.source(value.right)
            if isinstance(value.op, ast.Mult) and left == right:
                return value.left
            is_two = isinstance(value.op, ast.Pow) and right in ("2", "2.0")
            return value.left if is_two else None
        if not isinstance(value, ast.Call) or not _arguments(value):
            return None
        first, *rest = _arguments(value)
        if _name(value) == "square" and not rest:
            return first
        is_two = _name(value) == "pow" and [self.file.source(arg) for arg in rest] in (
            ["2"],
            ["2.0"],
        )
        return first if is_two else None

    def _sum(self, value: ast.expr) -> _Squares | None:
        value, eps = self._without_eps(value)
        if not isinstance(value, ast.Call) or _name(value) not in ("sum", "mean"):
            return None
        x = self._square(_arguments(value)[0])
        if x is None or (x.lineno != self.line and not self.file.is_unchanged(x, self.line)):
            return None
        return _Squares(self.file.source(x), value, eps)

    def _root(self, value: ast.expr) -> _Squares | None:
        """Return the sum of squares under a root; a norm of torch counts as one."""
        if isinstance(value, ast.BinOp):
            half = isinstance(value.op, ast.Pow) and self.file.source(value.right) == "0.5"
            return self._sum(value.left) if half else None
        if not isinstance(value, ast.Call) or not _arguments(value):
            return None
        if _name(value) in ("norm", "vector_norm"):
            return _Squares(self.file.source(_arguments(value)[0]), value)
        rest = [self.file.source(arg) for arg in _arguments(value)[1:]]
        is_root = (_name(value) == "sqrt" and not rest) or (
            _name(value) == "pow" and rest == ["0.5"]
        )
        return self._sum(_arguments(value)[0]) if is_root else None

    def _length(self, squares: _Squares) -> str:
        wide = f"{squares.x}.float()" if squares.x.isidentifier() else f"({squares.x}).float()"
        arguments = ", ".join(self._dimensions(squares))
        if squares.is_mean or squares.eps:
            sums = f"{wide}.square().{_name(squares.call)}({arguments})"
            return f"torch.sqrt({' + '.join([sums, *squares.eps])})"
        return f"torch.linalg.vector_norm({', '.join([wide, *filter(None, [arguments])])})"

    def _dimensions(self, squares: _Squares) -> list[str]:
        """Return dim and keepdim of a sum as keywords."""
        given = [self.file.source(arg) for arg in _arguments(squares.call)[1:]]
        if squares.is_norm:
            given = given[1:]  # the first one is the order
        keywords = {k.arg: self.file.source(k.value) for k in squares.call.keywords if k.arg}
        named = dict(zip(("dim", "keepdim"), given, strict=False))
        named |= {key: keywords[key] for key in ("dim", "keepdim") if key in keywords}
        return [f"{key}={value}" for key, value in named.items()]

    def _normalized(self, node: ast.expr) -> str:
        """Return x / norm(x), or x * rsqrt(mean(x * x)), as one operation."""
        if not isinstance(node, ast.BinOp):
            return ""
        x = self.file.source(node.left)
        if isinstance(node.op, ast.Div):
            divisor, shifts = self._without_eps(node.right)
            squares = self._root(divisor)
        elif isinstance(node.op, ast.Mult):
            inverse, shifts = self._follow(node.right), ()
            is_inverse = isinstance(inverse, ast.Call) and _name(inverse) == "rsqrt"
            squares = (
                self._sum(_arguments(inverse)[0])
                if is_inverse and isinstance(inverse, ast.Call)
                else None
            )
        else:
            return ""
        if squares is None or squares.x != x or not x.isidentifier():
            return ""
        named = dict(part.split("=", 1) for part in self._dimensions(squares))
        if named.get("keepdim") != "True" or "dim" not in named:
            return ""
        if squares.is_mean:
            is_rms = named["dim"] == "-1" and len(squares.eps) == 1 and not shifts
            return f"halfguard.ops.rms_norm({x}, eps={squares.eps[0]})" if is_rms else ""
        return f"halfguard.ops.normalize({x}, {named['dim']})"


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _arguments(call: ast.Call) -> list[ast.expr]:
    """Return the positional arguments of a function, or of a method with its object first."""
    assert isinstance(call.func, ast.Attribute)  # noqa: S101 - its name was read before
    owner = call.func.value
    return [*call.args] if ast.unparse(owner) in _TORCH else [owner, *call.args]
