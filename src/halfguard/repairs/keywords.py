"""Set keyword arguments of calls; ``change_keyword`` and ``switch_on`` are repairs of their own."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_at


def set_keyword(
    file: SourceFile, call: ast.Call, name: str, value: str, *, instead_of: str = ""
) -> None:
    """Set a keyword argument of a call, or add it."""
    old = next((k for k in call.keywords if k.arg == (instead_of or name)), None)
    if old is not None and not instead_of:
        file.replace(old.value, value)
        return
    text = file.source(call)
    if old is not None:
        before = f"{old.arg}={file.source(old.value)}"
        file.replace(call, text.replace(before, f"{name}={value}", 1))
        return
    inside = text[:-1].rstrip()
    comma = "" if inside.endswith(("(", ",")) else ", "
    gap = " " if inside.endswith(",") else ""
    file.replace(call, f"{inside}{comma}{gap}{name}={value})")


def has_only_device(call: ast.Call) -> bool:
    """Return whether all arguments but the device are keywords, so that one more is given once."""
    if not call.args:
        return True
    device = call.args[0]
    is_text = isinstance(device, ast.Constant) and isinstance(device.value, str)
    return len(call.args) == 1 and (is_text or isinstance(device, ast.Name | ast.Attribute))


@Repair
def change_keyword(file: SourceFile, line: int, name: str, value: str) -> None:
    """Change a keyword argument that is given on a line."""
    given = [k for call in calls_at(file, line) for k in call.keywords if k.arg == name]
    if len(given) == 1:
        file.replace(given[0].value, value)


@Repair
def add_keyword(
    file: SourceFile, line: int, name: str, value: str, functions: tuple[str, ...]
) -> None:
    """Set a keyword argument of the only call of some functions on a line."""
    found = [call for call in calls_at(file, line) if called_name(call) in functions]
    if len(found) == 1:
        set_keyword(file, found[0], name, value)


@Repair
def switch_on(file: SourceFile, line: int, name: str, *, anywhere: bool) -> None:
    """Set a keyword argument that is False on a line, or anywhere in the file, to True."""
    for call in file.calls if anywhere else calls_at(file, line):
        for keyword in call.keywords:
            is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == name and is_false:
                file.replace(keyword.value, "True")
