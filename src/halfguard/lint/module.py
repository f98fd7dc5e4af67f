"""What the names of a file stand for: imports in full, and the values that variables were given."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from halfguard.lint.index import Function, Index
from halfguard.lint.names import chain, key, last_name, number


@dataclass(frozen=True)
class Binding:
    """A name or attribute that was given a value; the value is None where it cannot be told."""

    line: int
    value: ast.expr | None
    function: Function | None


class Module(Index):
    """The index of a file with its names."""

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported name stands for, in full."""
        found: dict[str, str] = {}
        for node in self.nodes(ast.Import):
            for name in node.names:
                root = name.name.partition(".")[0]
                found[name.asname or root] = name.name if name.asname else root
        for origin in self.nodes(ast.ImportFrom):
            for name in origin.names:
                found[name.asname or name.name] = f"{origin.module or ''}.{name.name}"
        return found

    def dotted(self, node: ast.AST) -> str:
        """The full name of ``F.softmax``: ``torch.nn.functional.softmax``; empty for other things."""
        parts = chain(node)
        if not parts:
            return ""
        return ".".join((self.aliases.get(parts[0], parts[0]), *parts[1:]))

    def imports(self, *roots: str) -> bool:
        """Whether anything from these packages is imported, at any depth."""
        wanted = tuple(f"{root}." for root in roots)
        names = [name.name for node in self.nodes(ast.Import) for name in node.names]
        names += [*self.aliases.values()]
        return any(f"{name}.".startswith(wanted) for name in names)

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        """Every assignment in the file, by the key of its target."""
        found: dict[str, list[Binding]] = defaultdict(list)
        for node in self.nodes(ast.Assign):
            for target in node.targets:
                self._bind(found, target, node.value)
        for annotated in self.nodes(ast.AnnAssign):
            self._bind(found, annotated.target, annotated.value)
        for named in self.nodes(ast.NamedExpr):
            self._bind(found, named.target, named.value)
        for loop in self.nodes(ast.For):
            self._bind(found, loop.target, None)
        for changed in self.nodes(ast.AugAssign):
            self._bind(found, changed.target, None)
        return found

    def _bind(
        self, found: dict[str, list[Binding]], target: ast.expr, value: ast.expr | None
    ) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            for element, part in zip(target.elts, values, strict=True):
                self._bind(found, element, part)
        elif name := key(target):
            found[name].append(Binding(target.lineno, value, self.function_of(target)))

    def latest(self, node: ast.AST) -> Binding | None:
        """The last assignment before this use of a name, in its function; of an attribute, anywhere."""
        name = key(node)
        function = self.function_of(node)
        line = getattr(node, "lineno", 0)
        bound = self.bindings.get(name, ())
        if "." not in name:
            # "<" rather than "<=": in ``x = x.float()`` the right side is still the old x.
            here = [b for b in bound if b.function is function and b.line < line]
            if here:
                return max(here, key=lambda b: b.line)
            bound = [b for b in bound if b.function is None] if not self._is_local(node) else []
        return bound[0] if len(bound) == 1 else None

    def _is_local(self, node: ast.AST) -> bool:
        function = self.function_of(node)
        return function is not None and key(node) in parameters(function)

    def constant(self, node: ast.AST | None) -> float | None:
        """A number, also through a name that is bound once, and ``finfo(float32).min``."""
        if node is None:
            return None
        value = number(node)
        if value is None and isinstance(node, ast.Name | ast.Attribute):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
                return self._finfo(node, node.value)
            bound = self.latest(node)
            value = number(bound.value) if bound else None
        return value

    def _finfo(self, node: ast.Attribute, call: ast.Call) -> float | None:
        if last_name(call) != "finfo" or len(call.args) != 1:
            return None
        limits = {"float32": 3.4028234663852886e38, "float": 3.4028234663852886e38}
        largest = limits.get(self.dotted(call.args[0]).removeprefix("torch."))
        if largest is None:
            return None
        return {"min": -largest, "max": largest}.get(node.attr)


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters."""
    a = function.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    return [argument.arg for argument in every]


__all__ = ["Binding", "Function", "Module", "parameters"]
