"""Which files of a project import which others, and what they use of them."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+\(?([\w, \t]*)|import[ \t]+([\w., \t]+))",
    re.M,
)
_FROM = re.compile(rb"\bfrom[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)")
_SCRIPT = re.compile(rb"([\w./-]+)\.py\b|-m[ \t]+([\w.]+)")
_PROSE = (".md", ".rst", ".txt", ".ipynb")
_MAX_INDEX = 50  # imports of a package; one with more is the index of a library, and calls nothing


class Imports:
    """The imports of all files of a project, read when they are asked for."""

    def __init__(self, contents: dict[Path, bytes], root: Path = Path("/")) -> None:
        self._contents = contents
        self._root = root
        self._imported: dict[Path, set[Path]] = {}
        self._users: dict[Path, set[Path]] = {}
        self._used: dict[tuple[Path, str], bool] = {}

    @cached_property
    def sources(self) -> dict[Path, bytes]:
        """The Python files."""
        return {path: data for path, data in self._contents.items() if path.suffix == ".py"}

    @cached_property
    def folders(self) -> set[Path]:
        """The folders with Python files."""
        return {path.parent for path in self.sources}

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = defaultdict(list)
        for path in self.sources:
            found[path.parent.name if path.stem == "__init__" else path.stem].append(path)
        return found

    def imported(self, path: Path) -> set[Path]:
        """Return the files that one imports."""
        if path not in self._imported:
            self._imported[path] = set(self._read(path))
        return self._imported[path]

    def _read(self, path: Path) -> Iterable[Path]:
        imports = _IMPORT.findall(self.sources[path])
        if path.stem == "__init__" and len(imports) > _MAX_INDEX:
            return
        for dots, module, names, plain in imports:
            packages = tuple(filter(None, module.decode().split(".")))
            modules = [m.split()[0].split(".") for m in plain.decode().split(",") if m.strip()]
            wanted = [*map(tuple, modules), *([packages] if packages else [])]
            wanted += [(*packages, n.split()[0]) for n in names.decode().split(",") if n.strip()]
            for want in wanted:
                named = self._by_name.get(want[-1], ())
                found = [p for p in named if _is_at(p, want[:-1], path if dots else None)]
                beside = path.parent.joinpath(*want[:-1])  # a script looks there first
                yield from [p for p in found if p.parent == beside] or found

    def reached(self, start: Iterable[Path], depth: int | None = None) -> set[Path]:
        """Return files and those that they import, directly or through others; packages do not count."""
        reached, waiting = set(start), [(path, 0) for path in start]
        while waiting:
            path, steps = waiting.pop(0)
            for other in self.imported(path) - reached:
                further = steps + (other.stem != "__init__")
                if depth is None or further <= depth:
                    reached.add(other)
                    # What a package imports comes before what is one file further.
                    waiting.insert(0 if further == steps else len(waiting), (other, further))
        return reached

    @cached_property
    def _importers(self) -> dict[Path, set[Path]]:
        found: dict[Path, set[Path]] = defaultdict(set)
        for path in self.sources:
            for other in self.imported(path):
                found[other].add(path)
        return found

    def users(self, path: Path) -> set[Path]:
        """Return a file and those that import it, directly or through others."""
        if path not in self._users:
            users, waiting = {path}, [path]
            while waiting:
                more = self._importers[waiting.pop()] - users
                users |= more
                waiting += more
            self._users[path] = users
        return self._users[path]

    def is_connected(self, path: Path) -> bool:
        """Return whether a file is a program, or another one imports it; else nobody knows how it is run."""
        return len(self.users(path)) > 1 or b"__main__" in self.sources.get(path, b"")

    @cached_property
    def named(self) -> set[Path]:
        """The programs that a text runs. A README of a folder further below may be that of a copy."""
        texts = [
            (path, data) for path, data in self._contents.items()
            if path.suffix != ".py"
            and (path.suffix not in _PROSE or self._root in (path.parent, path.parent.parent))
        ]  # fmt: skip
        return set().union(
            *(_nearest(one, path) for path, text in texts for one in self.scripts(text))
        )

    @cached_property
    def _commanded(self) -> set[Path]:
        """The programs that a text names and that can run; where no text names any, all files that can."""
        programs = self.named or set(self.sources)
        return {path for path in programs if not self.is_broken(path)}

    def is_commanded(self, path: Path) -> bool:
        """Return whether a text names a program that uses a file."""
        return not self.is_broken(path) and not self._commanded.isdisjoint(self.users(path))

    def is_broken(self, path: Path) -> bool:
        """Return whether a file imports a name from a module of the project that does not define it."""
        data = self.sources.get(path, b"")
        for module, names in _FROM.findall(data):
            parts = tuple(module.decode().split("."))
            found = [p for p in self._by_name.get(parts[-1], ()) if _is_at(p, parts[:-1], None)]
            beside = [p for p in found if p.parent == path.parent.joinpath(*parts[:-1])]
            if (
                module.startswith(b".")
                or len(found) != 1
                or not beside
                or beside[0].stem == "__init__"
            ):
                continue
            content = self.sources[beside[0]]
            listed = re.sub(rb"#[^\n]*", b"", names).strip(b"() \n").split(b",")
            wanted = [n.split()[0] for n in listed if n.strip()]
            if b"import *" in content or b"__getattr__" in content or b"*" in wanted:
                continue
            if any(not re.search(rb"\b" + re.escape(n) + rb"\b", content) for n in wanted):
                return True
        return False

    def scripts(self, text: bytes) -> list[set[Path]]:
        """Return the files of the project that commands in a text run, one set for each command."""
        found: list[set[Path]] = []
        for file, module in _SCRIPT.findall(text):
            parts = file.split(b"/") if file else module.split(b".")
            given = tuple(p.decode() for p in parts if p.strip(b"."))
            named = self._by_name.get(given[-1], ()) if given else ()
            exact = {p for p in named if p.parts[-len(given) : -1] == given[:-1]}
            found.append(exact or set(named))
        return [one for one in found if one]

    def is_used(self, path: Path, name: str) -> bool:
        """Return whether another file may use a name that one defines; a strange file is not known."""
        if path not in self.sources:
            return True
        if (path, name) not in self._used:
            self._used[path, name] = self._search(path, name.encode())
        return self._used[path, name]

    def _search(self, path: Path, name: bytes) -> bool:
        stem = re.escape(path.stem.encode())
        chosen = re.compile(rb"getattr\(\s*[\w.]*" + stem + rb"\b|" + stem + rb"\.__dict__")
        word = re.compile(rb"\b" + name + rb"\b")
        own = re.compile(rb"^(?:class|def) " + name + rb"\b", re.M)
        for other, data in self._contents.items():
            if other == path:
                continue
            if other.suffix == ".py" and path.stem.encode() in data and chosen.search(data):
                return True
            if name not in data or not word.search(data):
                continue
            if other.suffix != ".py":
                return True
            imports = [module for module, names in _FROM.findall(data) if word.search(names)]
            if any(_is_module(path, module.decode()) for module in imports):
                return True
            if not imports and not own.search(data):
                return True
        return False


def _nearest(named: set[Path], text: Path) -> set[Path]:
    """Return the programs that a command can mean: below the folder of its text, as far up as possible."""
    near = {path for path in named if text.parent in path.parents} or named
    least = min((len(path.parts) for path in near), default=0)
    return {path for path in near if len(path.parts) == least}


def _is_module(path: Path, name: str) -> bool:
    """Return whether a dotted name may be that of a file, or of a package around it."""
    return set(name.strip(".").split(".")) - {""} <= {*path.parent.parts, path.stem}


def _is_at(path: Path, parents: tuple[str, ...], near: Path | None) -> bool:
    """Return whether a module lies below packages of these names; a relative import is near its file."""
    folder = path.parent.parent if path.stem == "__init__" else path.parent
    if near is not None and os.path.commonpath((folder, near.parent)) not in {
        str(folder), str(near.parent), str(near.parent.parent), str(near.parent.parent.parent)
    }:  # fmt: skip
        return False
    return not parents or folder.parts[-len(parents) :] == parents
