"""Find what a file saves for a resume: the values given to ``torch.save`` and to helpers that save."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, has_keyword, name_of, receiver, string
from halfguard.lint.python_file import PythonFile

Entries = list[tuple[str | None, ast.expr]]


def find_saves(file: PythonFile) -> Iterator[ast.Call]:
    """Yield ``torch.save(...)`` and calls of helpers that save, such as ``save_checkpoint(...)``."""
    for call in file.calls("save"):
        if file.full_name(call.func) == "torch.save":
            yield call
    for call in file.nodes(ast.Call):
        name = called_name(call)
        if name != "save" and "save" in name and call.args:
            yield call


def saved_states(file: PythonFile, save: ast.Call) -> Iterator[ast.Dict | ast.Call]:
    """Yield the dictionaries and calls that a call saves, through one assignment."""
    for given in save.args:
        state = given if isinstance(given, ast.Call) else file.assigned_value(given)
        if isinstance(state, ast.Dict | ast.Call):
            yield state


def entries_of(file: PythonFile, state: ast.Dict | ast.Call, save: ast.Call) -> Entries | None:
    """Return keys and values of a dictionary or a call of ``dict``; None if some are not known.

    Entries that are assigned later in the same function belong to it: ``state["optimizer"] = ...``.
    """
    if isinstance(state, ast.Call):
        if called_name(state) != "dict" or state.args or has_keyword(state, ""):
            return None
        return [(k.arg, k.value) for k in state.keywords]
    if any(key is None for key in state.keys):
        return None  # ** may add any entry
    found: Entries = [(string(k), v) for k, v in zip(state.keys, state.values, strict=True)]
    names = {name_of(a) for a in save.args} - {""}
    for assign in file.nodes(ast.Assign):
        target = assign.targets[0]
        if not isinstance(target, ast.Subscript) or name_of(target.value) not in names:
            continue
        if file.function_of(assign) is file.function_of(save):
            found.append((string(target.slice), assign.value))
    return found


def is_optimizer_state(file: PythonFile, node: ast.AST) -> bool:
    """Return whether an expression is ``optimizer.state_dict()``."""
    if not isinstance(node, ast.Call) or called_name(node) != "state_dict":
        return False
    return file.roles.is_optimizer(receiver(node))


def has_optimizer(file: PythonFile, entries: Entries) -> bool:
    """Return whether the state of an optimizer is among the values of a dictionary."""
    return any(is_optimizer_state(file, v) for _, value in entries for v in ast.walk(value))
