"""Parameters of a float16 model that were made float32 again: ``p.data = p.data.float()``.

They are an optimizer's if the same model, or the same tensor, is cast: each parameter that is trained, once,
and not before the model is made float16. A model that a function is given is looked up where it is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from halfguard.lint.expressions import argument, boolean, called_name, name_of, receiver, string
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile
from halfguard.lint.syntax_tree import parameter_names

PARAMETERS = {"parameters", "named_parameters"}


def trained_in(file: PythonFile, node: ast.AST | None) -> Iterator[str]:
    """Yield the names of the model, or of the list, whose trained parameters a loop runs over."""
    if isinstance(node, ast.Name):
        yield node.id
        value = file.assigned_value(node)
        yield from trained_in(file, value) if value is not node else ()
    elif isinstance(node, ast.Call) and called_name(node) in PARAMETERS:
        yield name_of(receiver(node))
    elif isinstance(node, ast.Call) and called_name(node) in {"list", "tuple"} and node.args:
        yield from trained_in(file, node.args[0])
    elif isinstance(node, ast.Call) and called_name(node) == "filter" and len(node.args) == 2:
        if isinstance(node.args[0], ast.Lambda) and _is_for_trained(file, node.args[0].body):
            yield from trained_in(file, node.args[1])
    elif isinstance(node, ast.ListComp | ast.GeneratorExp) and len(node.generators) == 1:
        is_whole = all(_is_for_trained(file, test) for test in node.generators[0].ifs)
        yield from trained_in(file, node.generators[0].iter) if is_whole else ()


def casts_each(file: PythonFile, loop: ast.For, assign: ast.Assign, name: str) -> bool:
    """Return whether a loop casts each parameter that it does not freeze."""
    child: ast.AST = assign
    for parent in file.ancestors(assign):
        if isinstance(parent, ast.If):
            other = parent.orelse if child in parent.body else parent.body
            always = child in parent.body and _is_for_trained(file, parent.test)
            if not always and not _freezes(other, name):
                return False
        if parent is loop:
            break
        child = parent
    leave = [n for n in ast.walk(loop) if isinstance(n, ast.Continue | ast.Break)]
    return all(_leaves_out_frozen(file, n, name) for n in leave if n.lineno < assign.lineno)


def _leaves_out_frozen(file: PythonFile, leave: ast.AST, name: str) -> bool:
    parent = file.parents.get(leave)
    if not isinstance(parent, ast.If) or leave not in parent.body:
        return False
    test = parent.test
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    is_frozen = negated and _is_for_trained(file, test.operand)  # type: ignore[attr-defined]
    return isinstance(leave, ast.Continue) and (is_frozen or _freezes(parent.body, name))


def _is_for_trained(file: PythonFile, test: ast.expr) -> bool:
    """Return whether every trained half parameter passes: ``p.requires_grad and p.dtype == torch.half``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(_is_for_trained(file, one) for one in test.values)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is):
        is_half = file.dtype_precision(test.comparators[0]) is Precision.HALF
        return is_half and isinstance(test.left, ast.Attribute) and test.left.attr == "dtype"
    return isinstance(test, ast.Attribute) and test.attr == "requires_grad"


def _freezes(body: Iterable[ast.stmt], name: str) -> bool:
    """Return whether statements set ``p.requires_grad = False``."""
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if f"{name}.requires_grad" in map(name_of, targets):
            return boolean(node.value) is False  # type: ignore[attr-defined]
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and name_of(call.func) == f"{name}.requires_grad_":
            return boolean(argument(call, 0, "requires_grad")) is False
    return False


def names_in(target: ast.expr) -> set[str]:
    """Return the variables that a loop assigns."""
    return {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}


_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_DEPTH, _MOST = 3, 20  # functions that call each other, and calls of each that are looked at


class _Place(NamedTuple):
    """A variable, the function or class that it belongs to, and where it is used there."""

    owner: ast.AST | None
    name: str
    node: ast.AST


class CastBack:
    """The parameters that a file casts to float32, found once."""

    def __init__(self, file: PythonFile) -> None:
        self._file = file
        self._cast = [place for assign in file.nodes(ast.Assign) for place in self._casts(assign)]

    def covers(self, call: ast.Call) -> bool:
        """Return whether all parameters of an optimizer were cast."""
        given = argument(call, 0, "params")
        if not self._cast or given is None:
            return False
        wanted = list(self._given(given))
        return bool(wanted) and all(any(self._is_cast(p) for p in same) for same in wanted)

    def _casts(self, assign: ast.Assign) -> Iterator[_Place]:
        names = [
            name_of(target.value)
            for target in assign.targets
            if isinstance(target, ast.Attribute) and target.attr == "data"
        ]
        if not any(names) or self._file.precision(assign.value) is not Precision.FULL:
            return
        for name in filter(None, names):
            around = [p for p in self._file.ancestors(assign) if isinstance(p, ast.For)]
            loop = next((p for p in around if name in names_in(p.target)), None)
            if loop is None:
                yield from _places(self._file, name, assign)
            elif casts_each(self._file, loop, assign, name):
                for one in trained_in(self._file, loop.iter):
                    yield from _places(self._file, one, loop)

    def _given(self, given: ast.expr) -> Iterator[list[_Place]]:
        """Yield the places of every model or tensor that an optimizer is given."""
        if isinstance(given, ast.List | ast.Tuple):
            for element in given.elts:
                if isinstance(element, ast.Dict):
                    values = zip(element.keys, element.values, strict=True)
                    for value in (v for key, v in values if string(key) == "params"):
                        yield from self._given(value)
                else:
                    yield list(_places(self._file, name_of(element), element))
            return
        source = self._file.assigned_value(given) or given
        calls = [c for c in ast.walk(source) if isinstance(c, ast.Call)]
        models = [name_of(receiver(c)) for c in calls if called_name(c) in PARAMETERS]
        same = list(_places(self._file, name_of(given), given))
        for name in models or [""]:
            yield [*same, *_places(self._file, name, given)]

    def _is_cast(self, wanted: _Place) -> bool:
        return any(
            cast.owner is wanted.owner
            and f"{wanted.name}.".startswith(f"{cast.name}.")
            and self._holds(cast, wanted.node)
            for cast in self._cast
        )

    def _holds(self, cast: _Place, made: ast.AST) -> bool:
        """Return whether a cast is done once where an optimizer is made, and not undone there."""
        file = self._file
        above = {*file.ancestors(made)}
        halves = [c for c in file.calls("half", "to") if name_of(receiver(c)) == cast.name]
        halves = [c for c in halves if called_name(c) == "half" or _asks_for_half(file, c)]
        for parent in file.ancestors(cast.node):
            if isinstance(parent, _LOOPS) and parent not in above:
                return False
            is_condition = isinstance(parent, ast.If) and parent not in above
            if is_condition and not _is_main(parent):
                if any(parent in file.ancestors(half) for half in halves):
                    continue
                return False
        return not any(self._undoes(half, cast, made) for half in halves)

    def _undoes(self, half: ast.Call, cast: _Place, made: ast.AST) -> bool:
        file, line = self._file, getattr(cast.node, "lineno", 0)
        if file.function_of(half) is not file.function_of(cast.node) or half.lineno <= line:
            return False
        loops = {p for p in file.ancestors(cast.node) if isinstance(p, _LOOPS)}
        elsewhere = file.function_of(made) is not file.function_of(cast.node)
        again = any(parent in loops for parent in file.ancestors(half))
        return elsewhere or again or half.lineno < getattr(made, "lineno", 0)


def _places(file: PythonFile, name: str, node: ast.AST, depth: int = 0) -> Iterator[_Place]:
    """Yield where a variable comes from: itself, or what callers give to the parameter that it is."""
    first, dot, rest = name.partition(".")
    function = file.function_of(node)
    if not name:
        return
    if first == "self":
        yield _Place(file.class_of(node), name, node)
        return
    names = [n for n in parameter_names(function) if n != "self"] if function else []
    calls = list(file.calls(function.name))[:_MOST] if function and first in names else []
    assigned = [a for a in file.assignments.get(first, ()) if a.function is function]
    if not calls or depth == _DEPTH:
        yield _Place(function if first in names or assigned else None, name, node)
    if depth == _DEPTH:
        return
    for call in calls:
        given = name_of(argument(call, names.index(first), first))
        yield from _places(file, given and f"{given}{dot}{rest}", call, depth + 1)
    for made in (a.value for a in assigned if isinstance(a.value, ast.Call)):
        builder = file.local_function(made)
        for result in file.returns_of(builder) if builder else ():
            returned = name_of(result.value)
            yield from _places(file, returned and f"{returned}{dot}{rest}", result, depth + 1)


def _asks_for_half(file: PythonFile, call: ast.Call) -> bool:
    given = (*call.args, *(keyword.value for keyword in call.keywords))
    return any(file.dtype_precision(one) is Precision.HALF for one in given)


def _is_main(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and name_of(test.left) == "__name__"
