"""The files of a job: those that its specification names, and the user's modules that they import.

Their digests are part of a run's name, so a changed line in any of them makes a new run. Imports are found by
parsing the source, never by running it. Installed packages are left out: their versions are part of the
environment. Data files and modules whose names are computed are not found.
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
from halfguard.step.installed import is_installed

_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_OURS = Path(__file__).resolve().parents[2]


def digests_of(folder: Path, entry: str | None, command: Sequence[str] | None) -> dict[str, str]:
    """Return the SHA-256 of every file of the job, by its path relative to ``folder``."""
    named = _named_files(folder, entry, command)
    files = dict.fromkeys(path.resolve() for path in named if _is_file(path))
    waiting = [path for path in files if path.suffix == ".py"]
    roots = [
        *(path.parent for path in waiting[:1]),
        folder,
    ]  # the folder of the script, and the current folder
    while waiting:
        for path in _imported_files(waiting.pop(), roots):
            if path not in files and _is_user_file(path):
                files[path] = None
                waiting.append(path)
    return {os.path.relpath(path, folder.resolve()): _digest(path) for path in sorted(files)}


def raise_if_changed(digests: Mapping[str, str]) -> None:
    """Raise if a file, relative to the current folder, has changed."""
    for name, digest in digests.items():
        if not Path(name).is_file() or _digest(Path(name)) != digest:
            raise UsageError(
                f"{name} has changed since the study was started, or is missing on this machine, so the "
                "runs of the study could not be compared.",
                cure=(
                    "Run the same command again to repeat the runs for the changed job. On several machines, "
                    "the job's files must be the same on each."
                ),
            )


def _named_files(folder: Path, entry: str | None, command: Sequence[str] | None) -> Iterator[Path]:
    """Yield the files that the specification names: an entry's file, or files in a command's arguments."""
    if entry is not None:
        place = entry.rpartition(":")[0]
        is_file = place.endswith(".py")
        yield from [folder / place] if is_file else _module_files(place, [folder])
    for before, argument in zip(("", *(command or ())), command or (), strict=False):
        if before == "-m":
            yield from _module_files(argument, [folder])
        # --config=train.yaml names a file as well
        yield from (folder / part for part in {argument, argument.rpartition("=")[2]} if part)


def _imported_files(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the run will report it
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
                yield from _package_files(package, [part for part in parts if part])


def _module_files(name: str, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that importing a dotted name would run; they may not exist."""
    top, *rest = name.split(".")
    found = _find(top, roots)
    if found is None:
        return
    if found.origin is not None and found.has_location:
        yield Path(found.origin)
    for place in found.submodule_search_locations or ():
        yield from _package_files(Path(place), rest)


def _find(top: str, roots: Sequence[Path]) -> ModuleSpec | None:
    local = PathFinder.find_spec(top, [str(root) for root in roots])
    if local is not None:
        return local
    try:
        return importlib.util.find_spec(top)  # imports nothing: the name has no dot
    except (ImportError, ValueError):
        return None


def _package_files(package: Path, parts: Sequence[str]) -> Iterator[Path]:
    yield package / "__init__.py"
    for part in parts:
        yield package / f"{part}.py"
        package /= part
        yield package / "__init__.py"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # an argument that is too long for a file name
        return False


def _is_user_file(path: Path) -> bool:
    foreign = path.is_relative_to(_OURS) or path.is_relative_to(_STANDARD)
    return path.is_file() and not foreign and not is_installed(str(path))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
