"""Deprecated names, and files that cannot be read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, name_parts, string
from halfguard.lint.match import Fix, FixKind, Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.requirements import DEPRECATING, WITH_AMP, WITH_NEW_NAMES
from halfguard.lint.rule import rule

_VERSION = re.compile(
    r"(?i:\bversion|_version|hasattr)|GREATER|is_torch_(?:version|greater|\w*\d)|TORCH_(?!AMP)|torch_\d"
)
_NAMES = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
}


@rule("HG001")
def check_nothing(file: PythonFile) -> Iterator[Match]:  # noqa: ARG001
    """Yield nothing: the engine reports this rule when it cannot read a file."""
    yield from ()


@rule("HG405", "cuda.amp", "cpu.amp", "cuda import amp", once=True)
def check_deprecated(file: PythonFile) -> Iterator[Match]:
    """Find deprecated calls."""
    if file.project.requires_before(DEPRECATING, file.path):
        return
    for name, positions in _NAMES.items():
        for call in file.calls(name):
            full = file.full_name(call.func)
            device = next((d for d in ("cuda", "cpu") if full.startswith(f"torch.{d}.amp.")), None)
            imports = _imports_of(file, call)
            if device is None or any(_is_fallback(file, node) for node in (call, *imports)):
                continue
            # The handler of an import defines the name for older versions, and would be left dead.
            tried = any(isinstance(p, ast.Try) for node in imports for p in file.ancestors(node))
            fix = None if tried else _modern(file, call, f'torch.amp.{name}("{device}"', positions)
            message = f'{full} is deprecated: use torch.amp.{name}("{device}").'
            yield match_at(call, message, fix)


def _imports_of(file: PythonFile, call: ast.Call) -> list[ast.ImportFrom]:
    """Return every import of the name that is called; one of several may be for other versions."""
    root = name_parts(call.func)[:1]
    nodes = file.nodes(ast.ImportFrom)
    return [n for n in nodes if any((alias.asname or alias.name) in root for alias in n.names)]


def _is_fallback(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a node is for older versions: in a handler, or after a check of the version."""
    for parent in file.ancestors(node):
        if isinstance(parent, ast.ExceptHandler):
            return True
        if isinstance(parent, ast.If | ast.IfExp) and _VERSION.search(ast.unparse(parent.test)):
            return True
        for test in getattr(parent, "body", ()) if isinstance(parent, ast.FunctionDef) else ():
            leaves = isinstance(test, ast.If) and isinstance(test.body[-1], ast.Return | ast.Raise)
            if leaves and isinstance(test, ast.If) and _VERSION.search(ast.unparse(test.test)):
                return True
    return False


def _modern(file: PythonFile, call: ast.Call, begin: str, positions: tuple[str, ...]) -> Fix | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(positions):
        return None
    kept = [f"{n}={file.text(a)}" for n, a in zip(positions, call.args, strict=False)]
    for keyword in call.keywords:
        value = file.text(keyword.value)
        kept.append(f"{keyword.arg}={value}" if keyword.arg else f"**{value}")
    is_new = file.project.lone or file.project.requires_at_least(WITH_NEW_NAMES)
    kind: FixKind = "safe" if is_new else "unsafe"
    return file.fix(kind, lambda source: source.replace(call, ", ".join((begin, *kept)) + ")"))


@rule("HG413", "apex", once=True)
def check_apex(file: PythonFile) -> Iterator[Match]:
    """Find the entry point of apex.amp, where torch has another one that the file does not offer."""
    is_old = file.project.requires_before(WITH_AMP, file.path)
    offers_both = re.search(r"\btorch\.(cuda\.)?amp\b", file.source.text)
    for call in () if is_old or offers_both else file.calls("initialize"):
        is_off = string(argument(call, -1, "opt_level")) == "O0"
        if file.full_name(call.func) == "apex.amp.initialize" and not is_off:
            yield match_at(call, "apex.amp is no longer developed.")
