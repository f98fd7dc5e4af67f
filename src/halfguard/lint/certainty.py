"""What a finding depends on that the project does not show, such as a switch that nothing turns on.

A source shows what a line does, but rarely that it is run in float16. A finding is certain only if a command
names the program, nothing sets a switch around it to off, and nothing chooses bfloat16 instead. Every other
finding keeps its condition, and is a note. Of a single file, nothing more can be known: it is taken as run.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator

from halfguard.lint.conditions import is_schedule_check
from halfguard.lint.expressions import argument, called_name, name_of, number, receiver, string
from halfguard.lint.match import Span
from halfguard.lint.python_file import PythonFile
from halfguard.lint.requirements import DEPRECATING, WITH_NEW_NAMES
from halfguard.lint.switches import is_switch

_DEPRECATED, _APEX = "HG405", "HG413"
_ON_RANKS, _SAVES = "HG301", ("HG309", "HG311")
IS_RUN = "this file is run"
IN_HALF = "float16 is on"
NO_BFLOAT16 = "float16 is chosen instead of bfloat16"
_CHOOSES = re.compile(
    r"(is_|supports?_|has_|use_)?(bf16|bfloat16)(_is)?_?(supported|available|ok)|use_bf16", re.I
)
_BFLOAT16 = re.compile(r"bfloat16|bf16", re.I)
_DTYPE = re.compile(r"dtype|precision|amp_type", re.I)
_OFF = {"false", "0", "none", "no", "off", "null", "-1", "", "fp32", "float32", "32", "0.0", "o0"}
_HALF = re.compile(r"(?<!b)(fp16|float16|half)|^16(-mixed)?$|^o[12]$")
_WIDTH, _MAX_DEPTH = 40, 20
_RANK = re.compile(r"rank|(is_)?(main|master|primary)|process", re.I)


def condition_of(file: PythonFile, code: str, span: Span) -> str:
    """Return what a finding depends on that the project does not show; empty if it shows everything."""
    project = file.project
    if project.lone:
        return ""
    if not project.is_commanded(file.path):
        return IS_RUN
    if code == _APEX:
        is_old = project.requires_before(WITH_NEW_NAMES, file.path)
        return "apex is newer than the required torch" if is_old else ""
    if code == _DEPRECATED:
        return "" if project.requires_at_least(DEPRECATING) else "torch is 2.4 or later"
    unmet = _unmet(file, _tests_around(file, span))
    if code == _ON_RANKS:
        return unmet or ("" if project.starts_ranks else "several ranks train")
    resumed = "" if code not in _SAVES or _resumes(file) else "training is resumed"
    return unmet or _precision(file) or resumed


def _tests_around(file: PythonFile, span: Span) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the tests around a place, each with the result that it must have."""
    for node in file.nodes(ast.If):
        if _covers(node, span) and not _covers(node.test, span):
            yield node.test, any(_covers(statement, span) for statement in node.body)


def _covers(node: ast.expr | ast.stmt, span: Span) -> bool:
    whole = Span.of(node)
    start, end = (span.line, span.column), (span.end_line, span.end_column)
    return (whole.line, whole.column) <= start and end <= (whole.end_line, whole.end_column)


def _tests_above(file: PythonFile, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the tests above a node, each with the result that it must have."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            body = parent.body if isinstance(parent, ast.If) else [parent.body]
            yield parent.test, child in body
        child = parent


def _unmet(file: PythonFile, tests: Iterable[tuple[ast.expr, bool]]) -> str:
    """Return the first test that a setting of the project may fail; empty if there is none."""
    for test, wanted in tests:
        if not _holds(file, test, wanted=wanted):
            text = textwrap.shorten(file.text(test), _WIDTH, placeholder="...")
            return f"{text} is {'true' if wanted else 'false'}"
    return ""


def _precision(file: PythonFile) -> str:
    """Return what the file needs to train in float16 that is not shown."""
    text = file.source.text
    if _CHOOSES.search(text) or (_BFLOAT16.search(text) and not _chooses_half(file)):
        return NO_BFLOAT16
    apex = [
        c for c in file.calls("initialize") if file.full_name(c.func).endswith("amp.initialize")
    ]
    casts = list(file.calls("autocast"))
    scalers = [*file.roles.constructed_scalers, *apex] or casts
    return (
        ""
        if all(any(_is_on(file, c) for c in calls) for calls in (scalers, casts or scalers))
        else IN_HALF
    )


def _is_on(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a scaler or autocast is on in every run that the project shows."""
    enabled = argument(call, -1, "enabled")
    return (enabled is None or _holds(file, enabled, wanted=True)) and not _unmet(
        file, _tests_above(file, call)
    )


def _chooses_half(file: PythonFile) -> bool:
    """Return whether every dtype that the project chooses for this file is float16."""
    names = {word for word in file.words if _DTYPE.search(word)}
    chosen = [v for name in names for v in file.project.values(name, file.path)]
    return any(map(_HALF.search, chosen)) and not any(map(_BFLOAT16.search, chosen))


def _resumes(file: PythonFile) -> bool:
    """Return whether nothing shows that the state of the optimizer is never loaded."""
    loads = [c for c in file.calls("load_state_dict") if file.roles.is_optimizer(receiver(c))]
    return not loads or any(_is_reached(file, call) for call in loads)


def _is_reached(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a call is run, as far as this file and the settings of the project show."""
    if _unmet(file, _tests_above(file, call)):
        return False
    function = file.function_of(call)
    if function is None:
        return True
    names = (function.name, f"self.{function.name}")
    here = [one for one in file.calls(function.name) if name_of(one.func) in names]
    if here and all(_unmet(file, _tests_above(file, one)) for one in here):
        return False
    return file.project.calls(function.name)


def _holds(file: PythonFile, test: ast.AST | None, *, wanted: bool, depth: int = 0) -> bool:
    """Return whether a test has a result for every value of the settings in it; others depend on the run."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.And) is wanted
        return (all if every else any)(
            _holds(file, part, wanted=wanted, depth=depth + 1) for part in test.values
        )
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _holds(file, test.operand, wanted=not wanted, depth=depth + 1)
    if isinstance(test, ast.Call) and called_name(test) == "bool" and test.args:
        return _holds(file, test.args[0], wanted=wanted, depth=depth + 1)
    if isinstance(test, ast.Compare):
        has_result = _comparison(test)
        return has_result is None or _all_values(
            file, test.left, lambda value: has_result(value) is wanted, depth
        )
    return _all_values(file, test, lambda value: (value not in _OFF) is wanted, depth)


def _comparison(test: ast.Compare) -> Callable[[str], bool] | None:
    """Return the test of a value against literals; None if it depends on the run."""
    right, operator = test.comparators[0], test.ops[0]
    parts = right.elts if isinstance(right, ast.Tuple | ast.List | ast.Set) else [right]
    given = {text for part in parts if (text := _literal(part)) is not None}
    if not given or len(test.ops) > 1 or is_schedule_check(test):
        return None
    if isinstance(operator, ast.Eq | ast.Is | ast.In):
        return lambda value: value in given
    if isinstance(operator, ast.NotEq | ast.IsNot | ast.NotIn):
        return lambda value: value not in given
    if isinstance(operator, ast.Gt | ast.GtE) and number(right) in (0, 1):
        return lambda value: value not in (_OFF if number(right) == 0 else _OFF | {"1"})
    return None


def _all_values(
    file: PythonFile, node: ast.AST | None, is_right: Callable[[str], bool], depth: int
) -> bool:
    """Return whether every value that the project gives a setting is right; others depend on the run."""
    if isinstance(node, ast.Name) and not is_switch(node.id) and _is_computed(file, node):
        return True
    node = file.assigned_value(node) or node
    if (known := _literal(node)) is not None:
        return is_right(known)
    if isinstance(node, ast.BoolOp | ast.UnaryOp | ast.Compare):
        return _holds(file, node, wanted=is_right("true"), depth=depth + 1)
    name = _setting(node)
    if not name or file.roles.is_scaler(node) or _RANK.search(name):
        return True
    values = file.project.values(name, file.path)
    return all(map(is_right, values)) if values else not is_switch(name)


def _is_computed(file: PythonFile, name: ast.Name) -> bool:
    """Return whether a variable has a value that is not a literal, so that it depends on the run."""
    assigned = file.assignments.get(name.id, ())
    return len(assigned) > 1 or any(_literal(a.value) is None for a in assigned)


def _setting(node: ast.AST | None) -> str:
    """Return the name of a setting: ``amp`` in ``args.amp``, ``args["amp"]`` and ``args.get("amp")``."""
    if isinstance(node, ast.Call) and called_name(node) == "get" and node.args:
        return string(node.args[0]) or ""
    if isinstance(node, ast.Subscript):
        return string(node.slice) or ""
    return name_of(node).rpartition(".")[2]


def _literal(node: ast.AST | None) -> str | None:
    """Return a literal as it is written in lower case; None for other expressions."""
    if isinstance(node, ast.Constant):
        return str(node.value).lower()
    value = number(node)
    return None if value is None else f"{value:g}"
