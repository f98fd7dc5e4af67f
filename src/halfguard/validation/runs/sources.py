"""The files that a job is made of: those that its specification names, and what these import of the user's.

Their digests are part of a run's name, so that a changed line, also in a neighbour of the entry, is another
run. What is imported is found by reading the source, never by running it. Installed packages are left out:
their versions belong to the environment. Modules whose names are computed, and data, are not seen.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from halfguard.errors import UsageError

_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_OURS = Path(__file__).resolve().parents[2]


def digests_of(folder: Path, entry: str | None, command: Sequence[str] | None) -> dict[str, str]:
    """SHA-256 of every file of the job, by its path as seen from ``folder``."""
    named = _named(folder, entry, command)
    files = dict.fromkeys(path.resolve() for path in named if _is_file(path))
    waiting = [path for path in files if path.suffix == ".py"]
    roots = [
        *(path.parent for path in waiting[:1]),
        folder,
    ]  # beside a script, or from where it starts
    while waiting:
        for path in _imported(waiting.pop(), roots):
            if path not in files and _is_the_users(path):
                files[path] = None
                waiting.append(path)
    return {os.path.relpath(path, folder.resolve()): _digest(path) for path in sorted(files)}


def refuse_changed(digests: Mapping[str, str]) -> None:
    """Raise unless the files, seen from the current folder, are still what they were."""
    for name, digest in digests.items():
        if not Path(name).is_file() or _digest(Path(name)) != digest:
            raise UsageError(
                f"{name} is not what it was when the study was started, so its runs would not be of one "
                "kind.",
                cure="Start the same command again: runs of the changed job are new runs. On several "
                "machines, the job's files must be the same on each.",
            )


def _named(folder: Path, entry: str | None, command: Sequence[str] | None) -> Iterator[Path]:
    """What the specification itself names: an entry's file, or the files among a command's words."""
    if entry is not None:
        place = entry.rpartition(":")[0]
        is_file = place.endswith(".py")
        yield from [folder / place] if is_file else _module_files(place, [folder])
    for before, word in zip(("", *(command or ())), command or (), strict=False):
        if before == "-m":
            yield from _module_files(word, [folder])
        # --config=train.yaml names a file as well
        yield from (folder / part for part in {word, word.rpartition("=")[2]} if part)


def _imported(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # running it will tell
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, roots)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield from _module_files(f"{node.module}.{alias.name}", roots)
        elif isinstance(node, ast.ImportFrom):
            package = path.parents[node.level - 1]
            for alias in node.names:
                parts = (*(node.module or "").split("."), alias.name)
                yield from _below(package, [part for part in parts if part])


def _module_files(name: str, roots: Sequence[Path]) -> Iterator[Path]:
    """The files that importing a dotted name runs, as far as they are files."""
    top, *rest = name.split(".")
    found = _find(top, roots)
    if found is None:
        return
    if found.origin is not None and found.has_location:
        yield Path(found.origin)
    for place in found.submodule_search_locations or ():
        yield from _below(Path(place), rest)


def _find(top: str, roots: Sequence[Path]) -> ModuleSpec | None:
    near = PathFinder.find_spec(top, [str(root) for root in roots])
    if near is not None:
        return near
    try:
        return importlib.util.find_spec(top)  # a name without a dot: nothing is imported by this
    except (ImportError, ValueError):
        return None


def _below(package: Path, parts: Sequence[str]) -> Iterator[Path]:
    yield package / "__init__.py"
    for part in parts:
        yield package / f"{part}.py"
        package /= part
        yield package / "__init__.py"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a word of a command that is too long for a name is none
        return False


def _is_the_users(path: Path) -> bool:
    foreign = path.is_relative_to(_OURS) or path.is_relative_to(_STANDARD)
    return path.is_file() and not foreign and not any(part in _INSTALLED for part in path.parts)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
