"""Anomaly detection is on in a run with loss scaling."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, number, string
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, remove

_FP16 = {"16-mixed", "16"}

META = Meta(
    contains=("detect_anomaly",),
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find anomaly mode in files that construct a scaler, and in a Trainer that has one."""
    yield from _check_trainer(file)
    if not file.roles.constructed_scalers:
        return
    for call in file.calls("detect_anomaly", "set_detect_anomaly"):
        sets_mode = file.full_name(call.func).endswith("set_detect_anomaly")
        if not file.is_torch_call(call) or (
            sets_mode and boolean(argument(call, 0, "mode")) is not True
        ):
            continue
        statement = file.statement_of(call)
        edit = remove(file, statement) if isinstance(statement, ast.Expr) else None
        fix = make_fix("unsafe", edit)
        yield match_at(call, "This raises on an overflow that the scaler would skip.", fix)


def _check_trainer(file: PythonFile) -> Iterator[Match]:
    """Find ``Trainer(detect_anomaly=True)`` of Lightning in FP16, also through ``**settings``."""
    if not file.imports("lightning", "pytorch_lightning"):
        return
    for call in file.calls("Trainer"):
        settings = dict(_settings(file, call))
        value = settings.get("detect_anomaly")
        if value is not None and boolean(value) is True and _is_fp16(file, settings):
            yield match_at(value, "This raises on an overflow that the scaler would skip.")


def _settings(file: PythonFile, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the keywords of a call, with those of ``**dict(...)`` and ``**{...}``."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
            continue
        given = file.assigned_value(keyword.value)
        if isinstance(given, ast.Call):
            yield from ((k.arg, k.value) for k in given.keywords if k.arg is not None)
        elif isinstance(given, ast.Dict):
            pairs = zip(given.keys, given.values, strict=True)
            yield from ((name, value) for key, value in pairs if (name := string(key)))


def _is_fp16(file: PythonFile, settings: dict[str, ast.expr]) -> bool:
    """Return whether a Trainer scales the loss: by its precision, or by a plugin for ``16-mixed``."""
    precision = file.assigned_value(settings.get("precision"))
    if string(precision) in _FP16 or number(precision) == 16:
        return True
    plugins = file.assigned_value(settings.get("plugins"))
    parts = ast.walk(plugins) if plugins is not None else ()
    return any(string(file.assigned_value(part)) == "16-mixed" for part in parts)
