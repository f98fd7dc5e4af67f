"""The syntax tree of a file, walked once, with its imports and assignments.

Rules never walk the tree themselves. One walk sorts the nodes by type, and the calls by the last part of the
called name.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

from halfguard.lint.expressions import argument, called_name, name_of, name_parts, number, receiver
from halfguard.lint.source import Source

# The fields that the walk follows in each type of node, and whether they are lists. Contexts and operators
# are read from their parent.
_SKIPPED = {"ctx", "op", "ops", "type_comment", "type_ignores"}
_LISTS = {
    "body", "orelse", "finalbody", "handlers", "decorator_list", "targets", "args", "keywords", "bases",
    "names", "elts", "keys", "values", "generators", "ifs", "comparators", "items", "cases", "patterns",
    "kwd_patterns", "posonlyargs", "kwonlyargs", "kw_defaults", "defaults", "type_params",
}  # fmt: skip
_SINGLE = {
    ast.Lambda: {"args", "body"}, ast.IfExp: {"body", "orelse"}, ast.Expression: {"body"},
    ast.FunctionDef: {"args"}, ast.AsyncFunctionDef: {"args"},
}  # fmt: skip
_CHILD_FIELDS: dict[type[ast.AST], tuple[tuple[str, bool], ...]] = {
    kind: tuple(
        (name, name in _LISTS and name not in _SINGLE.get(kind, ()))
        for name in kind._fields
        if name not in _SKIPPED
    )
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
# Nodes without children are not put on the stack of the walk. No rule looks for constants by type.
_LEAVES = {ast.Name, ast.Constant, ast.Pass, ast.Break, ast.Global, ast.Nonlocal, ast.alias}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Assignment:
    """An assignment to a name or attribute; ``value`` is None where it is not a known expression."""

    line: int
    value: ast.expr | None
    function: Function | None
    container: ast.expr | None = None  # the right side of ``a, b = f()``, or what a loop runs over
    element: int = 0
    in_place: bool = False  # ``x += y``: the tensor keeps its dtype


class SyntaxTree:
    """Nodes by type, calls by name, the parents of each node, and the values of variables."""

    def __init__(self, source: Source, root: ast.Module) -> None:
        self.source = source
        self.root = root
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._walk()

    def _walk(self) -> None:
        """Visit every node once, in source order, without recursion."""
        stack: list[ast.AST] = [self.root]
        parents, by_type = self.parents, self._by_type
        while stack:
            node = stack.pop()
            kind = type(node)
            by_type[kind].append(node)
            if kind is ast.Call:
                self._calls[called_name(cast("ast.Call", node))].append(cast("ast.Call", node))
            children: list[ast.AST] = []
            for name, is_list in _CHILD_FIELDS[kind]:
                value = getattr(node, name, None)
                if not value:
                    continue
                if not is_list:
                    if isinstance(value, ast.AST):
                        children.append(value)
                elif isinstance(value[0], ast.AST) or kind is ast.Dict:
                    children += [item for item in value if item is not None]
            children.reverse()
            for child in children:
                parents[child] = node
                child_kind = type(child)
                if child_kind not in _LEAVES:
                    stack.append(child)
                elif child_kind is not ast.Constant:
                    by_type[child_kind].append(child)

    def release(self) -> None:
        """Forget everything, so that the tree is freed at once; it holds references to itself."""
        self.__dict__.clear()

    def nodes(self, kind: type[Node]) -> list[Node]:
        """Return all nodes of a type, in source order."""
        return cast("list[Node]", self._by_type.get(kind, []))

    @property
    def called_names(self) -> Iterable[str]:
        """The last parts of all called names."""
        return self._calls.keys()

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield all calls whose function ends in one of these names."""
        for name in names:
            yield from self._calls.get(name, ())

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node."""
        known = self._functions_around
        if node not in known:
            around = self.ancestors(node)
            functions = (p for p in around if isinstance(p, ast.FunctionDef | ast.AsyncFunctionDef))
            known[node] = next(functions, None)
        return known[node]

    @cached_property
    def _functions_around(self) -> dict[ast.AST, Function | None]:
        """The functions around nodes that were asked for: many are asked for again and again."""
        return {}

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the innermost class around a node."""
        return next((p for p in self.ancestors(node) if isinstance(p, ast.ClassDef)), None)

    def statement_of(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that contains a node."""
        if isinstance(node, ast.stmt):
            return node
        return next((p for p in self.ancestors(node) if isinstance(p, ast.stmt)), None)

    @cached_property
    def functions(self) -> list[Function]:
        """Functions and methods."""
        return [*self.nodes(ast.FunctionDef), *self.nodes(ast.AsyncFunctionDef)]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The full name behind each imported name."""
        found: dict[str, str] = {}
        for node in self.nodes(ast.Import):
            for name in node.names:
                package = name.name.partition(".")[0]
                found[name.asname or package] = name.name if name.asname else package
        for origin in self.nodes(ast.ImportFrom):
            for name in origin.names:
                found[name.asname or name.name] = f"{origin.module or ''}.{name.name}"
        return found

    def full_name(self, node: ast.AST) -> str:
        """Return ``torch.nn.functional.softmax`` for ``F.softmax``; empty if ``node`` is not a name."""
        parts = name_parts(node)
        if not parts:
            return ""
        return ".".join((self.aliases.get(parts[0], parts[0]), *parts[1:]))

    def is_torch_call(self, call: ast.Call) -> bool:
        return self.full_name(call.func).startswith("torch.")

    def tensor_of(self, call: ast.Call) -> ast.expr | None:
        """Return ``x`` of ``torch.f(x)`` or ``x.f()``."""
        return argument(call, 0, "input") if self.is_torch_call(call) else receiver(call)

    def imports(self, *packages: str) -> bool:
        """Return whether the file imports anything from these packages."""
        prefixes = tuple(f"{package}." for package in packages)
        names = [name.name for node in self.nodes(ast.Import) for name in node.names]
        names += [*self.aliases.values()]
        return any(f"{name}.".startswith(prefixes) for name in names)

    @cached_property
    def assignments(self) -> dict[str, list[Assignment]]:
        """Every assignment in the file, by the name of its target."""
        found: dict[str, list[Assignment]] = defaultdict(list)
        for node in self.nodes(ast.Assign):
            for target in node.targets:
                self._add_assignment(found, target, node.value)
        for annotated in self.nodes(ast.AnnAssign):
            self._add_assignment(found, annotated.target, annotated.value)
        for named in self.nodes(ast.NamedExpr):
            self._add_assignment(found, named.target, named.value)
        for loop in self.nodes(ast.For):
            self._add_assignment(found, loop.target, None)
        for changed in self.nodes(ast.AugAssign):
            if name := name_of(changed.target):
                function = self.function_of(changed)
                found[name].append(Assignment(changed.lineno, None, function, in_place=True))
        return found

    def _add_assignment(
        self, found: dict[str, list[Assignment]], target: ast.expr, value: ast.expr | None,
        container: ast.expr | None = None, element: int = 0,
    ) -> None:  # fmt: skip
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            known = len(parts) == len(target.elts)
            for index, inner in enumerate(target.elts):
                part = parts[index] if known else None
                self._add_assignment(found, inner, part, None if known else value, index)
        elif name := name_of(target):
            function = self.function_of(target)
            found[name].append(Assignment(target.lineno, value, function, container, element))

    def last_assignment(self, node: ast.AST, *, in_place: bool = True) -> Assignment | None:
        """Return the last assignment before this use of a variable.

        A name is looked up in its function first, then at module level. Outside of its function, and for an
        attribute, the assignment must be the only one. Changes in place can be left out.
        """
        name = name_of(node)
        if "." in name:
            assigned = self.assignments.get(name, [])
        else:
            function = self.function_of(node)
            line = getattr(node, "lineno", 0)
            # "<" rather than "<=": in ``x = x.float()`` the right side is still the old x.
            here = [a for a in self._assignments_in.get((name, function), ()) if a.line < line]
            here = here if in_place else [a for a in here if not a.in_place]
            if here:
                return max(here, key=lambda a: a.line)
            if function is not None and name in parameter_names(function):
                return None
            assigned = self._assignments_in.get((name, None), [])
        assigned = assigned if in_place else [a for a in assigned if not a.in_place]
        return assigned[0] if len(assigned) == 1 else None

    @cached_property
    def _assignments_in(self) -> dict[tuple[str, Function | None], list[Assignment]]:
        """The assignments by name and function: a file may have thousands of one name."""
        found: dict[tuple[str, Function | None], list[Assignment]] = defaultdict(list)
        for name, assigned in self.assignments.items():
            for one in assigned:
                found[name, one.function].append(one)
        return dict(found)

    def assigned_value(self, node: ast.AST | None) -> ast.AST | None:
        """Return the value last assigned to a name, or the node itself."""
        assigned = self.last_assignment(node) if isinstance(node, ast.Name) else None
        return assigned.value if assigned and assigned.value is not None else node

    def constructed(self, name: str) -> list[str]:
        """Return the variables that are assigned a call of this name, as in ``x = GradScaler()``."""
        return [
            variable
            for variable, assigned in self.assignments.items()
            if any(isinstance(a.value, ast.Call) and called_name(a.value) == name for a in assigned)
        ]

    def local_function(self, call: ast.Call) -> Function | None:
        """Return the function or method of this file that a call runs, if only one has that name."""
        name = name_of(call.func)
        bare = name.removeprefix("self.")
        owner = self.class_of(call) if name != bare else None
        if name != bare and owner is None:
            return None
        candidates = self._functions_by_name.get((owner, bare), ())
        return candidates[0] if len(candidates) == 1 else None

    @cached_property
    def _functions_by_name(self) -> dict[tuple[ast.AST | None, str], list[Function]]:
        """The functions by name, and by class if they are methods."""
        found: dict[tuple[ast.AST | None, str], list[Function]] = defaultdict(list)
        for function in self.functions:
            parent = self.parents.get(function)
            owner = parent if isinstance(parent, ast.ClassDef) else None
            found[owner, function.name].append(function)
        return dict(found)

    def callers_of(self, function: Function) -> list[ast.Call]:
        """Return the calls of this file that run a function."""
        return self._callers.get(function, [])

    @cached_property
    def _callers(self) -> dict[Function, list[ast.Call]]:
        found: dict[Function, list[ast.Call]] = defaultdict(list)
        for call in self.calls(*{function.name for function in self.functions}):
            if (function := self.local_function(call)) is not None:
                found[function].append(call)
        return dict(found)

    @cached_property
    def words(self) -> Counter[str]:
        """How often each word stands in the source."""
        return Counter(re.findall(r"\w+", self.source.text))

    @cached_property
    def words_of_statements(self) -> list[tuple[ast.stmt, set[str]]]:
        """The statements at the top of the file, each with the words in its lines."""
        lines = self.source.lines
        texts = (b"".join(lines[s.lineno - 1 : s.end_lineno]) for s in self.root.body)
        found = (set(re.findall(r"\w+", text.decode("utf-8", "replace"))) for text in texts)
        return list(zip(self.root.body, found, strict=True))

    def returns_of(self, function: Function) -> list[ast.Return]:
        """Return the ``return`` statements of a function, without those of inner functions."""
        return self._returns.get(function, [])

    @cached_property
    def _returns(self) -> dict[Function | None, list[ast.Return]]:
        found: dict[Function | None, list[ast.Return]] = defaultdict(list)
        for node in self.nodes(ast.Return):
            found[self.function_of(node)].append(node)
        return found

    def calls_of(self, variable: str) -> Iterator[ast.Call]:
        """Yield the calls of a variable, such as ``self.criterion``."""
        for call in self.calls(variable.rpartition(".")[2]):
            if name_of(call.func) == variable:
                yield call

    def constant(self, node: ast.AST | None, depth: int = 0) -> float | None:
        """Return the number behind a literal, a variable assigned once, or ``finfo(float32).min``.

        The default of a parameter counts, also through an attribute: ``self.eps = eps`` in ``__init__``.
        """
        if node is None or depth > 3:
            return None
        value = number(node)
        if value is None and isinstance(node, ast.Name | ast.Attribute):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
                return self._finfo_limit(node, node.value)
            assigned = self.last_assignment(node)
            if assigned is not None:
                return self.constant(assigned.value, depth + 1)
            return number(self.default_of(node))
        if value is None and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.constant(node.operand, depth + 1)
            return None if inner is None else -inner
        if value is None and isinstance(node, ast.Call) and called_name(node) == "float":
            return self.constant(argument(node, 0, ""), depth + 1)
        return value

    def default_of(self, node: ast.AST) -> ast.expr | None:
        """Return the default of the parameter that a name refers to."""
        function = self.function_of(node)
        return (
            parameter_default(function, node.id)
            if function and isinstance(node, ast.Name)
            else None
        )

    def _finfo_limit(self, node: ast.Attribute, call: ast.Call) -> float | None:
        if called_name(call) != "finfo" or len(call.args) != 1:
            return None
        limits = {"float32": 3.4028234663852886e38, "float": 3.4028234663852886e38}
        largest = limits.get(self.full_name(call.args[0]).removeprefix("torch."))
        if largest is None:
            return None
        return {"min": -largest, "max": largest}.get(node.attr)


def parameter_names(function: Function) -> list[str]:
    """Return the names of a function's parameters."""
    a = function.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    return [parameter.arg for parameter in every]


def parameter_default(function: Function, name: str) -> ast.expr | None:
    """Return the default value of a parameter; None if it has none."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    with_default = positional[len(positional) - len(a.defaults) :]
    for parameter, default in zip(with_default, a.defaults, strict=True):
        if parameter.arg == name:
            return default
    for parameter, value in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        if parameter.arg == name:
            return value
    return None
