"""Whether the loss scale of a file ever matters: a scaler that is on, and an autocast to float16."""

from __future__ import annotations

import ast
import re

from halfguard.lint.conditions import is_for_full_precision
from halfguard.lint.expressions import argument, boolean, number, receiver
from halfguard.lint.project import is_only_bfloat16
from halfguard.lint.python_file import PythonFile
from halfguard.lint.unused import is_never

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
    if file.autocast.is_bfloat16 or is_only_bfloat16(text.encode()):
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
    if enabled is not None and is_never(file, file.assigned_value(enabled)):
        return True
    tests = (p.test for p in file.ancestors(call) if isinstance(p, ast.If | ast.IfExp))
    is_asked = any(is_never(file, file.assigned_value(test)) for test in tests)
    return is_asked and not is_for_full_precision(file, call)
