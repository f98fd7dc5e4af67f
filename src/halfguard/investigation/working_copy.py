"""A copy of the working folder for each pass, so that a rerun repeats no side effect.

Folders are made anew. Small files are copied, by reference where the file system can; large ones are links
to the originals, and become copies when the script opens them for writing. A tree with more files than can be
copied in reasonable time is a link as a whole, and the user is told.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_LARGE = 8 * 2**20  # bytes of a file that is linked
_MOST_BYTES = 512 * 2**20  # copied in all; then files are linked
_MOST_ENTRIES = 20_000  # files and folders; then folders are linked as a whole
_FICLONE = 0x40049409  # of Linux
# Folders that training scripts read, at most.
_LINKED = frozenset({".git", ".venv", "venv", "node_modules", ".tox", ".mypy_cache", ".ruff_cache"})


@dataclass
class Links:
    """Links of a copy to large originals."""

    originals: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: str) -> Links:
        """Read the list that ``WorkingCopy`` wrote."""
        try:
            return cls(set(Path(path).read_text("utf-8").splitlines()) if path else set())
        except OSError:
            return cls()

    def make_real(self, path: str, *, truncates: bool) -> bool:
        """Replace a link by a copy before it is written to; return whether it was a link."""
        if path not in self.originals:
            return False
        self.originals.discard(path)
        link = Path(path)
        with contextlib.suppress(OSError):
            original = link.resolve(strict=True)
            link.unlink()
            if truncates:
                link.touch()
            else:
                shutil.copyfile(original, link)
        return True


@dataclass
class WorkingCopy:
    """Copies folders below one place, the same place each time."""

    place: Path
    roots: tuple[Path, ...]
    shared: tuple[str, ...] = ()  # folders that are links as a whole
    _linked: dict[Path, tuple[int, int]] = field(default_factory=dict)  # originals: size, time

    def make(self) -> None:
        """Make the copies, as they were before the first pass."""
        shutil.rmtree(self.place, ignore_errors=True)
        budget = _Budget()
        links: list[str] = []
        for root in self.roots:
            _copy_folder(root, self.inside(root), budget, links, own=self.place.parent)
        self.shared = tuple(budget.shared)
        self.links.write_text("\n".join(links), "utf-8")
        originals = [Path(link).resolve() for link in links]
        self._linked = {path: _state(path) for path in originals} | self._linked

    def changed(self) -> list[Path]:
        """Return the originals of links that were changed: by a library that Python does not see."""
        return [path for path, before in self._linked.items() if _state(path) != before]

    def remove(self) -> None:
        """Remove the copies. Links are removed, not what they point to."""
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def links(self) -> Path:
        """The file that lists the links."""
        return self.place.parent / "links.txt"

    def inside(self, path: Path) -> Path:
        """Return where a path of the user is in the copy; itself if it was not copied."""
        for number, root in enumerate(self.roots):
            if path.is_relative_to(root):
                return self.place / str(number) / path.relative_to(root)
        return path

    def original(self, path: str) -> str:
        """Return the user's path for one in the copy."""
        for number, root in enumerate(self.roots):
            if Path(path).is_relative_to(self.place / str(number)):
                return str(root / Path(path).relative_to(self.place / str(number)))
        return path

    def folders(self) -> tuple[str, ...]:
        """Return the folders of the copy."""
        return tuple(str(self.place / str(n)) for n in range(len(self.roots)))


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


@dataclass
class _Budget:
    entries: int = 0
    bytes: int = 0
    shared: list[str] = field(default_factory=list)


def _copy_folder(
    source: Path, target: Path, budget: _Budget, links: list[str], *, own: Path
) -> None:
    """Copy breadth first, so that what is linked as a whole lies deep, or is large.

    The folder of the copies is left out: a script may run in the folder of temporary files.
    """
    target.mkdir(parents=True)
    waiting = [(source, target)]
    for folder, copy in waiting:
        for entry in _entries(folder):
            if Path(entry.path) == own:
                continue
            made, budget.entries = copy / entry.name, budget.entries + 1
            if entry.is_symlink():
                made.symlink_to(_link_target(Path(entry.path), source))
            elif entry.is_dir():
                if entry.name in _LINKED or budget.entries > _MOST_ENTRIES:
                    made.symlink_to(entry.path)
                    if entry.name not in _LINKED:
                        budget.shared.append(entry.path)
                else:
                    made.mkdir()
                    waiting.append((Path(entry.path), made))
            elif entry.is_file():
                _copy_file(entry, made, budget, links)


def _clone(source: str, target: Path) -> bool:
    """Copy a file by reference, if the file system can: the copy takes no space until it is written."""
    if sys.platform != "linux":
        return False
    import fcntl  # noqa: PLC0415 - not on every platform

    try:
        with open(source, "rb") as original, target.open("wb") as copy:  # noqa: PTH123
            fcntl.ioctl(copy.fileno(), _FICLONE, original.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from sorted(found, key=lambda entry: entry.name)
    except OSError:
        return


def _link_target(link: Path, root: Path) -> Path:
    """Return the target of the user's own link: a relative one inside the folder stays relative."""
    target = link.readlink()
    if target.is_absolute() or not (link.parent / target).resolve().is_relative_to(root.resolve()):
        return (link.parent / target).resolve()
    return target


def _copy_file(entry: os.DirEntry[str], made: Path, budget: _Budget, links: list[str]) -> None:
    size = entry.stat().st_size
    if size > _LARGE and _clone(entry.path, made):
        return
    try:
        if size <= _LARGE and budget.bytes + size <= _MOST_BYTES:
            shutil.copy2(entry.path, made)
            budget.bytes += size
            return
    except OSError:  # a file that cannot be read: the script meets the same error
        made.unlink(missing_ok=True)
    made.symlink_to(entry.path)
    links.append(str(made))
