"""A checkpoint contains the optimizer but not the scaler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.checkpoints import (
    entries_of,
    find_saves,
    has_optimizer,
    is_optimizer_state,
    saved_states,
)
from halfguard.lint.expressions import (
    argument,
    called_name,
    has_keyword,
    name_of,
    receiver,
)
from halfguard.lint.match import Edit, Fix, Match, Meta, Span, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.syntax_tree import Function

META = Meta(
    contains=("GradScaler", "apex"),
    also_contains=("state_dict", "save"),
)
_CHECKPOINT = re.compile(r"save_?(\w+_)?(checkpoint|ckpt|state|training)", re.IGNORECASE)
_APEX = re.compile(r"\bamp\.(initialize|scale_loss|state_dict)\b")
_LOADS = re.compile(r"load|resume|restore", re.IGNORECASE)
_BFLOAT16_ONLY = re.compile(r"^(?!.*(?<!b)float16).*==\s*\(?\S*bfloat16")
_BFLOAT16_BY_DEFAULT = re.compile(r"""(default|dtype)\s*=\s*["'](torch\.)?(bfloat16|bf16)["']""")


def check(file: PythonFile) -> Iterator[Match]:
    """Find checkpoints without the scaler, each once."""
    scalers = sorted(file.roles.assigned_scalers)
    if file.project.known and not _resumes(file):
        return
    if _is_saved(file) or not (scalers or _has_apex_scale(file)) or _is_rarely_on(file):
        return
    seen: set[ast.AST] = set()
    for call in find_saves(file):
        if scalers and not any(_is_available(file, name, call) for name in scalers):
            continue
        states = saved_states(file, call)
        state = next((s for s in states if _lacks_scaler(file, s, call)), None)
        if state is None and not (scalers and _passes_optimizer(file, call)):
            continue
        # A helper saves several models of one training; one report is enough for all of them.
        saved = state or file.function_of(call) or file.root
        if saved in seen:
            continue
        seen.add(saved)
        fix = _fix(file, state, scalers) if isinstance(state, ast.Dict) else None
        yield match_at(call, "This checkpoint contains the optimizer but not the loss scale.", fix)


def _is_saved(file: PythonFile) -> bool:
    """Return whether the state of a scaler is read anywhere in this file."""
    return any(
        re.search(r"scaler|amp$", name_of(receiver(call)), re.I)
        for call in file.calls("state_dict")
    )


def _resumes(file: PythonFile) -> bool:
    """Return whether this file loads the state of an optimizer, or has a helper load it."""
    if any(_is_optimizer_of_any_kind(file, receiver(c)) for c in file.calls("load_state_dict")):
        return True
    return any(
        _LOADS.search(called_name(call))
        and any(_is_optimizer_of_any_kind(file, a) for a in _given(call))
        for call in file.nodes(ast.Call)
    )


def _is_optimizer_of_any_kind(file: PythonFile, node: ast.expr | None) -> bool:
    """Return whether a value is an optimizer, or one of several: ``optimizers["generator"]``."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return file.roles.is_optimizer(node)


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def _has_apex_scale(file: PythonFile) -> bool:
    return file.imports("apex") and bool(_APEX.search(file.source.text))


def _is_rarely_on(file: PythonFile) -> bool:
    """Return whether the scaler is for float16 only, and bfloat16 is the default or the only one."""
    if file.autocast.is_bfloat16:
        return True
    enabled = [argument(call, -1, "enabled") for call in file.roles.constructed_scalers]
    for_half = [e for e in enabled if e is not None and re.search("float16|fp16", ast.unparse(e))]
    if enabled and all(e is not None and _BFLOAT16_ONLY.search(ast.unparse(e)) for e in enabled):
        return True
    return bool(
        enabled and len(for_half) == len(enabled) and _BFLOAT16_BY_DEFAULT.search(file.source.text)
    )


def _passes_optimizer(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a helper of another file gets the optimizer to save, and not the scaler."""
    if not _CHECKPOINT.search(called_name(call)) or file.local_function(call) is not None:
        return False
    if has_keyword(call, "scaler"):
        return False
    names = [name_of(part).lower() for a in _given(call) for part in ast.walk(a)]
    if any("scaler" in n or "amp" in n for n in names):
        return False
    return any(file.roles.is_optimizer(a) for a in _given(call))


def _is_available(file: PythonFile, name: str, call: ast.Call) -> bool:
    """Return whether the scaler is accessible where the checkpoint is saved, or where that is called."""
    here = file.function_of(call)
    places = {here} | {file.function_of(c) for c in _calls_of(file, here)}
    shared = name.startswith("self.") and file.class_of(call) is not None
    return shared or any(a.function is None or a.function in places for a in file.assignments[name])


def _calls_of(file: PythonFile, function: Function | None) -> list[ast.Call]:
    if function is None:
        return []
    return [c for c in file.calls(function.name) if file.local_function(c) is function]


def _lacks_scaler(file: PythonFile, state: ast.Dict | ast.Call, save: ast.Call) -> bool:
    """Return whether a saved value holds the state of an optimizer and no scaler."""
    if is_optimizer_state(file, state):
        return True
    entries = entries_of(file, state, save)
    if entries is None or any(re.search("scaler|amp", key or "", re.I) for key, _ in entries):
        return False
    return has_optimizer(file, entries)


def _fix(file: PythonFile, state: ast.Dict, scalers: list[str]) -> Fix | None:
    if len(scalers) != 1 or not state.values:
        return None
    name, function = scalers[0], file.function_of(state)
    here = [a.function for a in file.assignments[name]]
    if not name.startswith("self.") and None not in here and function not in here:
        return None
    if any(not isinstance(a.value, ast.Call) for a in file.assignments[name]):
        return None  # it may be None
    end = Span.after(state.values[-1])
    return Fix("unsafe", (Edit(end, f', "scaler": {name}.state_dict()'),))
