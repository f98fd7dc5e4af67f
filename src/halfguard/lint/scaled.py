"""Whether the loss scale of a file ever matters: a scaler that is on, and an autocast to float16."""

from __future__ import annotations

import ast
import re

from halfguard.lint.conditions import is_for_full_precision
from halfguard.lint.expressions import (
    argument,
    boolean,
    called_name,
    name_of,
    number,
    receiver,
    string,
)
from halfguard.lint.python_file import PythonFile
from halfguard.lint.switches import is_switch

_BFLOAT16 = re.compile(r"\bdtype[\"']?\s*[:=]\s*torch\.bfloat16")
_FLOAT16 = re.compile(r"(?<!b)float16|torch\.half\b")
_BFLOAT16_ONLY = re.compile(r"^(?!.*(?<!b)float16).*==\s*\(?\S*bfloat16")
_BFLOAT16_BY_DEFAULT = re.compile(r"""(default|dtype)\s*=\s*["'](torch\.)?(bfloat16|bf16)["']""")


def never_scales(file: PythonFile) -> bool:
    """Return whether no scaler of a file does anything: it is off, scales by 1, or is for bfloat16."""
    scalers = file.roles.constructed_scalers
    apex = [
        c for c in file.calls("initialize") if file.full_name(c.func).endswith("amp.initialize")
    ]
    if _is_for_bfloat16(file, scalers):
        return True
    updated = any(file.roles.is_scaler(receiver(call)) for call in file.calls("update"))
    by_one = all(number(argument(call, 0, "init_scale")) == 1 for call in scalers)
    if scalers and by_one and not updated:
        return True
    # A scaler that is on scales float32 gradients where every autocast is off.
    cast = file.calls("autocast")
    casts = [c for c in cast if boolean(argument(c, -1, "enabled")) is not False]
    made = scalers or apex
    return bool(made) and any(o and all(_is_off(file, one) for one in o) for o in (made, casts))


def _is_for_bfloat16(file: PythonFile, scalers: list[ast.Call]) -> bool:
    """Return whether autocast is to bfloat16, by default or always, where a loss scale has no effect."""
    text = file.source.text
    if file.autocast.is_bfloat16 or (_BFLOAT16.search(text) and not _FLOAT16.search(text)):
        return True
    given = [argument(call, -1, "enabled") for call in scalers]
    enabled = [ast.unparse(e) if e is not None else "" for e in given]
    if enabled and all(map(_BFLOAT16_ONLY.search, enabled)):
        return True
    for_half = all(re.search("float16|fp16", one) for one in enabled)
    return bool(enabled and for_half and _BFLOAT16_BY_DEFAULT.search(text))


def _is_off(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a scaler or autocast is behind a switch that nothing turns on."""
    enabled = argument(call, -1, "enabled")
    if enabled is not None and _is_never(file, file.assigned_value(enabled)):
        return True
    tests = (p.test for p in file.ancestors(call) if isinstance(p, ast.If | ast.IfExp))
    is_asked = any(_is_never(file, file.assigned_value(test)) for test in tests)
    return is_asked and not is_for_full_precision(file, call)


def _is_never(file: PythonFile, test: ast.AST | None) -> bool:
    """Return whether ``args.amp``, ``args["amp"]``, ``args.get("amp")`` or ``args.amp is True`` is false."""
    if isinstance(test, ast.BoolOp):
        parts = (_is_never(file, value) for value in test.values)
        return any(parts) if isinstance(test.op, ast.And) else all(parts)
    if isinstance(test, ast.Compare) and boolean(test.comparators[0]) is True:
        return _is_never(file, test.left)
    if isinstance(test, ast.Call) and called_name(test) == "bool" and test.args:
        return _is_never(file, test.args[0])
    if boolean(test) is False:
        return True
    whole = name_of(test)
    if isinstance(test, ast.Subscript):
        whole = string(test.slice) or ""
    elif isinstance(test, ast.Call) and called_name(test) == "get":
        whole = string(argument(test, 0, "")) or ""
    if not is_switch(whole):
        return False
    # An argument of a function may come from any switch.
    name = "" if isinstance(test, ast.Name) else whole.rpartition(".")[2]
    return not file.project.may_be_on(name)
