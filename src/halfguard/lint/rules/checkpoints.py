"""Checkpoints that training resumes from: without the loss scale, or with weights rounded to float16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, has_keyword, name_of, receiver, string
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import rule
from halfguard.lint.rules.scaling import check_new_scalers

Entries = list[tuple[str | None, ast.expr]]
_LOADS = re.compile(r"load|resume|restore", re.IGNORECASE)
_BEST_IS_LOADED = re.compile(
    r"(load|resume|restore)[^\n]*best|best[^\n]*(load|resume|restore)", re.I
)
_SCALES = re.compile("scaler|amp", re.IGNORECASE)


@rule("HG309", "GradScaler", "apex", also=("state_dict", "save"), once=True)
def check_scaler_state(file: PythonFile) -> Iterator[Match]:
    """Find checkpoints without the scaler, each once."""
    scalers = sorted(file.roles.assigned_scalers)
    has_apex = file.imports("apex") and re.search(
        r"\bamp\.(initialize|scale_loss|state_dict)\b", file.source.text
    )
    saved = [receiver(call) for call in file.calls("state_dict")]
    if any(file.roles.is_scaler(n) or re.search(r"scaler|amp$", name_of(n), re.I) for n in saved):
        return
    if (
        not (scalers or has_apex)
        or not (file.project.lone or _resumes(file))
        or any(check_new_scalers(file))  # HG210: no scale outlives an epoch
    ):
        return
    seen: set[ast.AST] = set()
    loads_best = _BEST_IS_LOADED.search(file.source.text)
    for call in _saves(file):
        if scalers and not any(_is_available(file, name, call) for name in scalers):
            continue
        paths = " ".join(file.text(a) for a in _given(call) if not isinstance(a, ast.Dict))
        if re.search(r"(?<!is_)best", paths) and not loads_best:
            continue  # nothing resumes from the best weights
        if not file.project.lone and _is_final(file, call):
            continue
        state = next((s for s in _states(file, call) if _lacks_scaler(file, s, call)), None)
        if state is None and not (scalers and _passes_optimizer(file, call)):
            continue
        if scalers and _is_stepped_alone(file, state or call):
            continue
        # A helper saves several models of one training; one report is enough for all of them.
        one = state or file.function_of(call) or file.root
        if one not in seen:
            seen.add(one)
            fix = _fix(file, state, scalers) if isinstance(state, ast.Dict) else None
            message = "This checkpoint contains the optimizer but not the loss scale."
            yield match_at(call, message, fix)


@rule("HG311", ".half()", also=("save",))
def check_half_weights(file: PythonFile) -> Iterator[Match]:
    """Find float16 weights beside the state of an optimizer, once per dictionary."""
    if not file.project.lone and not file.project.resumes:
        return
    seen: set[ast.AST] = set()
    for call in _saves(file):
        for state in _states(file, call):
            entries = _entries(file, state, call)
            if state in seen or entries is None or not _has_optimizer(file, entries):
                continue
            half = [v for _, v in entries if any(_casts(node) for node in ast.walk(v))]
            if half:
                seen.add(state)
                yield match_at(half[0], "Training resumes from these weights, rounded to float16.")


def _casts(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called_name(node) == "half" and not node.args


def _saves(file: PythonFile) -> Iterator[ast.Call]:
    """Yield ``torch.save(...)`` and calls of helpers that save, such as ``save_checkpoint(...)``."""
    for call in file.calls("save"):
        if file.full_name(call.func) == "torch.save":
            yield call
    for call in file.nodes(ast.Call):
        name = called_name(call)
        if name != "save" and "save" in name and (call.args or call.keywords):
            yield call


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def _states(file: PythonFile, save: ast.Call) -> Iterator[ast.Dict | ast.Call]:
    """Yield the dictionaries and calls that a call saves, through one assignment."""
    for given in _given(save):
        state = given if isinstance(given, ast.Call) else file.assigned_value(given)
        if isinstance(state, ast.Dict | ast.Call):
            yield state


def _entries(file: PythonFile, state: ast.Dict | ast.Call, save: ast.Call) -> Entries | None:
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
    names = {name_of(a) for a in _given(save)} - {""}
    for assign in file.nodes(ast.Assign):
        target = assign.targets[0]
        same = file.function_of(assign) is file.function_of(save)
        if same and isinstance(target, ast.Subscript) and name_of(target.value) in names:
            found.append((string(target.slice), assign.value))
    return found


def _is_optimizer_state(file: PythonFile, node: ast.AST) -> bool:
    is_state = isinstance(node, ast.Call) and called_name(node) == "state_dict"
    return isinstance(node, ast.Call) and is_state and file.roles.is_optimizer(receiver(node))


def _has_optimizer(file: PythonFile, entries: Entries) -> bool:
    return any(_is_optimizer_state(file, v) for _, value in entries for v in ast.walk(value))


def _lacks_scaler(file: PythonFile, state: ast.Dict | ast.Call, save: ast.Call) -> bool:
    """Return whether a saved value holds the state of an optimizer and no scaler."""
    if _is_optimizer_state(file, state):
        return True
    entries = _entries(file, state, save)
    if entries is None or any(_SCALES.search(key or "") for key, _ in entries):
        return False
    return _has_optimizer(file, entries)


def _is_stepped_alone(file: PythonFile, saved: ast.expr) -> bool:
    """Return whether the function around steps this optimizer without a scaler: it is that of others."""
    names = {name_of(n) for n in ast.walk(saved) if file.roles.is_optimizer(n)}
    steps = [c for c in file.calls("step") if file.function_of(c) is file.function_of(saved)]
    alone = {name_of(receiver(call)) for call in steps if not call.args}
    return bool(names & alone) and not any(name_of(c.args[0]) in names for c in steps if c.args)


def _passes_optimizer(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a helper of another file gets the optimizer to save, and not the scaler."""
    is_local = file.local_function(call) is not None or has_keyword(call, "scaler")
    if is_local or not re.search("(^|_)save", called_name(call)):
        return False
    names = [name_of(part) for a in _given(call) for part in ast.walk(a)]
    if any(map(_SCALES.search, names)):
        return False
    return any(file.roles.is_optimizer(a) for a in _given(call))


def _resumes(file: PythonFile) -> bool:
    """Return whether this file loads the state of an optimizer, or has a helper load it."""

    def is_optimizer(node: ast.expr | None) -> bool:  # also one of several: optimizers["generator"]
        return file.roles.is_optimizer(node.value if isinstance(node, ast.Subscript) else node)

    if any(is_optimizer(receiver(call)) for call in file.calls("load_state_dict")):
        return True
    loads = (c for c in file.nodes(ast.Call) if _LOADS.search(called_name(c)))
    if any(is_optimizer(given) for call in loads for given in _given(call)):
        return True
    # optimizer = build(...), of a module that loads its state
    assigned = [a for name, one in file.assignments.items() if "opt" in name for a in one]
    made = [value for a in assigned if isinstance(value := a.value or a.container, ast.Call)]
    modules = {file.full_name(call.func).rpartition(".")[0].rpartition(".")[2] for call in made}
    return bool(modules & file.project.resumes)


def _is_final(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a checkpoint is saved after the loop that trains."""
    here, around = file.function_of(call), set(file.ancestors(call))
    loops = [n for n in file.nodes(ast.For) if "epoch" in ast.unparse(n.target)]
    before = [n for n in loops if file.function_of(n) is here and n.lineno < call.lineno]
    return bool(before) and not around.intersection(before)


def _is_available(file: PythonFile, name: str, call: ast.Call) -> bool:
    """Return whether the scaler is accessible where the checkpoint is saved, or where that is called.

    An attribute is, in a method of the class that makes it and uses it.
    """
    here, owner = file.function_of(call), file.class_of(call)
    if name.startswith("self."):
        makers = [a.value for a in file.assignments[name] if a.value is not None]
        return owner is not None and any(file.class_of(value) is owner for value in makers)
    callers = file.callers_of(here) if here else []
    places = {here} | {file.function_of(c) for c in callers}
    return any(a.function is None or a.function in places for a in file.assignments[name])


def _fix(file: PythonFile, state: ast.Dict, scalers: list[str]) -> Fix | None:
    if len(scalers) != 1 or not state.values:
        return None
    name, function = scalers[0], file.function_of(state)
    here = [a.function for a in file.assignments[name]]
    if not name.startswith("self.") and None not in here and function not in here:
        return None
    if any(not isinstance(a.value, ast.Call) for a in file.assignments[name]):
        return None  # it may be None
    text = f', "scaler": {name}.state_dict()'
    return file.fix("unsafe", lambda source: source.append(state.values[-1], text))
