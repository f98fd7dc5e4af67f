"""Find the private names of other packages that a source tree uses, by reading its syntax trees.

A syntax tree has no types, so rules decide whose attribute ``x._name`` is. A dotted name that begins with an
import belongs to that package. ``self._name`` is torch's if the class inherits it from a class of torch.
``x._name`` is the module's own if the module defines ``_name``, and else somebody else's.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

_READERS = {"getattr", "hasattr", "setattr"}
_DOTTED = r"torch[\w.]*\._\w[\w.]*"  # a private module in a string


def private_names(package: Path) -> dict[str, set[str]]:
    """Return each private name of somebody else, and the packages of ``package`` that use it.

    A name below an import is given in full ("torch.utils._pytree.tree_map"), any other alone ("_version").
    """
    found = defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        tree = ast.parse(path.read_text("utf-8"))
        for name in _Module(".".join(parts), tree).foreign_names():
            found[name].add(parts[1])
    return dict(found)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class _Module:
    """One file: what it imports, what it defines, and what it takes from others."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree
        self.imports = dict(_imported_names(tree))
        self.own = set(_defined_names(tree))

    def foreign_names(self) -> Iterator[str]:
        yield from self._below(self.tree, None)
        yield from (path for path in self.imports.values() if _is_private_torch(path))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):  # "import torch._dynamo" binds torch alone
                yield from (alias.name for alias in node.names if _is_private_torch(alias.name))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in _READERS:
                name = getattr(node.args[1], "value", "")
                if _is_private(str(name)) and "halfguard" not in name:
                    yield name
            elif isinstance(node, ast.Constant) and re.fullmatch(_DOTTED, str(node.value)):
                yield str(node.value).rstrip(".")

    def _below(self, node: ast.AST, inside: ast.ClassDef | None) -> Iterator[str]:
        """Yield private attributes and methods below a node; ``self`` is an object of class ``inside``."""
        for child in ast.iter_child_nodes(node):
            path = self._full_name(child)
            if path is not None and _is_private_torch(path):
                yield _shorten(path)
            elif path is None and isinstance(child, ast.Attribute) and _is_private(child.attr):
                if not self._is_own(child, inside):
                    yield child.attr
            elif isinstance(child, ast.FunctionDef) and inside and _is_private(child.name):
                yield from {child.name} & self._torch_names(inside)
            if path is None:  # the inner parts of a dotted name are in it
                outer = child if isinstance(child, ast.ClassDef) else inside
                yield from self._below(child, outer)

    def _full_name(self, node: ast.AST) -> str | None:
        """Return "torch.nn.Linear" for ``nn.Linear``, or None if it does not begin with an import."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self._full_name(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def _is_own(self, node: ast.Attribute, inside: ast.ClassDef | None) -> bool:
        if not _is_self(node.value):
            return node.attr in self.own
        if inside is None:  # a function that becomes a method of somebody else's class
            return "halfguard" in node.attr
        return node.attr not in self._torch_names(inside)

    def _torch_names(self, node: ast.ClassDef) -> set[str]:
        """Return the private names that a class of this module inherits from torch."""
        if not node.bases:
            return set()
        cls = getattr(importlib.import_module(self.name), node.name, object)
        kinds = (kind for kind in cls.__mro__ if kind.__module__.split(".")[0] == "torch")
        return {name for kind in kinds for name in _names_of_class(kind)}


@cache
def _names_of_class(kind: type) -> frozenset[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return frozenset(filter(_is_private, _defined_names(tree)))


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif stored and isinstance(node, ast.Name):
            yield node.id
        elif stored and isinstance(node, ast.Attribute) and _is_self(node.value):
            yield node.attr


def _is_private_torch(path: str) -> bool:
    first, *rest = path.split(".")
    return first == "torch" and any(map(_is_private, rest))


def _shorten(path: str) -> str:
    """Cut a path behind its last private part, or behind the next one if that part is a module."""
    parts = path.split(".")
    end = 1 + max(n for n, part in enumerate(parts) if _is_private(part))
    found: object = importlib.import_module("torch")
    for part in parts[1:end]:
        found = getattr(found, part)
    return ".".join(parts[: end + isinstance(found, ModuleType)])
