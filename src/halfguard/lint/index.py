"""The tree of a file, walked once and sorted.

One idea: a rule never walks. The single walk sorts nodes by type and calls by the last part of their name.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar, cast

from halfguard.lint.names import last_name
from halfguard.lint.source import Source

# The fields of each kind of node that are worth visiting: contexts and operators are asked of their parent.
_CHILDREN: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(f for f in kind._fields if f not in {"ctx", "op", "ops", "type_comment"})
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


class Index:
    """Nodes by type, calls by name, and what stands around a node."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._walk()

    def _walk(self) -> None:
        """Visit every node once, in source order, without recursion."""
        stack: list[ast.AST] = [self.tree]
        parents, by_type = self.parents, self._by_type
        while stack:
            node = stack.pop()
            kind = type(node)
            by_type[kind].append(node)
            if kind is ast.Call:
                self._calls[last_name(cast("ast.Call", node))].append(cast("ast.Call", node))
            children: list[ast.AST] = []
            for name in _CHILDREN[kind]:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    children += [item for item in value if isinstance(item, ast.AST)]
                elif isinstance(value, ast.AST):
                    children.append(value)
            children.reverse()
            for child in children:
                parents[child] = node
                if type(child) is not ast.Constant:  # many, childless, and never asked for by type
                    stack.append(child)

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of a type, in source order."""
        return cast("list[Node]", self._by_type.get(kind, []))

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """All calls whose function ends in one of these names."""
        for name in names:
            yield from self._calls.get(name, ())

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def function_of(self, node: ast.AST) -> Function | None:
        """The function in whose body a node stands."""
        for parent in self.ancestors(node):
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
                return parent
        return None

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class in whose body, or method, a node stands."""
        return next((p for p in self.ancestors(node) if isinstance(p, ast.ClassDef)), None)

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """The statement that a node is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next((p for p in self.ancestors(node) if isinstance(p, ast.stmt)), None)

    @cached_property
    def functions(self) -> list[Function]:
        """Every function and method."""
        return [*self.nodes(ast.FunctionDef), *self.nodes(ast.AsyncFunctionDef)]
