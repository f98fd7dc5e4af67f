"""`torch.cuda.amp` is deprecated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import name_parts
from halfguard.lint.match import Fix, FixKind, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    contains=("cuda.amp", "cpu.amp", "cuda import amp"),
    once=True,
)
_VERSION = re.compile(r"version|GREATER|hasattr|is_torch|TORCH_|torch_\d", re.IGNORECASE)
_NAMES = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
}


def check(file: PythonFile) -> Iterator[Match]:
    """Find deprecated calls."""
    if file.project.pins_old_torch:
        return
    for name, positions in _NAMES.items():
        for call in file.calls(name):
            full = file.full_name(call.func)
            device = next((d for d in ("cuda", "cpu") if full.startswith(f"torch.{d}.amp.")), None)
            if device is not None and not _is_fallback(file, call):
                fix = _fix(file, call, name, device, positions)
                message = f'{full} is deprecated: use torch.amp.{name}("{device}").'
                yield match_at(call, message, fix)


def _is_fallback(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the call is for older versions of torch, behind a check of the version."""
    return _is_guarded(file, call) or any(_is_guarded(file, i) for i in _imports_of(file, call))


def _is_guarded(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a node is in an exception handler, or behind a check of the version."""
    for parent in file.ancestors(node):
        if isinstance(parent, ast.ExceptHandler):
            return True
        if isinstance(parent, ast.If | ast.IfExp) and _VERSION.search(ast.unparse(parent.test)):
            return True
    return False


def _is_tried(file: PythonFile, node: ast.AST) -> bool:
    return any(isinstance(parent, ast.Try) and parent.handlers for parent in file.ancestors(node))


def _imports_of(file: PythonFile, call: ast.Call) -> Iterator[ast.ImportFrom]:
    """Yield every import of the name that is called; one of several may be for other versions."""
    root = name_parts(call.func)[:1]
    found = [
        node
        for node in file.nodes(ast.ImportFrom)
        if any((alias.asname or alias.name) in root for alias in node.names)
    ]
    yield from found


def _fix(
    file: PythonFile, call: ast.Call, name: str, device: str, positions: tuple[str, ...]
) -> Fix | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(positions):
        return None
    if any(_is_tried(file, node) for node in _imports_of(file, call)):
        return None  # its handler defines the name for older versions, and would be left dead
    kept = [f"{n}={file.text(a)}" for n, a in zip(positions, call.args, strict=False)]
    for keyword in call.keywords:
        value = file.text(keyword.value)
        kept.append(f"{keyword.arg}={value}" if keyword.arg else f"**{value}")
    text = ", ".join((f'"{device}"', *kept))
    edit = replace(file, call, f"torch.amp.{name}({text})")
    kind: FixKind = "unsafe" if file.project.allows_old_torch else "safe"
    return make_fix(kind, edit, imports=("torch",))
