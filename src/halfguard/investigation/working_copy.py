"""A copy of the working folder for each pass, so that a rerun repeats no side effect.

Folders are made anew. Small files are copied; large ones are links to the originals, and become copies when
the script opens them for writing. A tree with more files than can be
copied in reasonable time is a link as a whole, and the user is told. What lies beside the working folder is
linked too; such a folder becomes one of links when Python writes in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

_LARGE = 8 * 2**20  # bytes of a file that is linked
_MOST_BYTES = 512 * 2**20  # copied in all; then files are linked
_MOST_ENTRIES = 20_000  # files and folders; then folders are linked as a whole
_ABOVE = 3  # folders above the user's, to which paths such as ``../data`` lead
_MOST_BESIDE = 5_000  # entries of one of them that are linked
# Folders that training scripts read, at most.
_LINKED = frozenset({".git", ".venv", "venv", "node_modules", ".tox", ".mypy_cache", ".ruff_cache"})


@dataclass
class Links:
    """Links of a copy to large originals, and to what lies beside the folder."""

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
        self.open_parents(path)
        if path not in self.originals:
            return False
        link = Path(path)
        if link.is_dir():
            self._open(link)
            return True
        self.originals.discard(path)
        with contextlib.suppress(OSError):
            original = link.resolve(strict=True)
            link.unlink()
            if truncates:
                link.touch()
            else:
                shutil.copyfile(original, link)
        return True

    def open_parents(self, path: str) -> None:
        """Make the folders above a path real, so that what changes in them stays in the copy."""
        if self.originals:
            for parent in reversed(Path(path).parents):
                if str(parent) in self.originals:
                    self._open(parent)

    def _open(self, link: Path) -> None:
        """Replace the link of a folder by a folder of links."""
        self.originals.discard(str(link))
        with contextlib.suppress(OSError):
            original = link.resolve(strict=True)
            link.unlink()
            link.mkdir()
            self.originals.update(_link_entries(original, link))


@dataclass
class WorkingCopy:
    """Copies folders below one place, the same place each time.

    What lies beside a folder, and beside the folders above it, is linked: a script may read ``../data``.
    """

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
        for made, folder in self.pairs():
            if folder not in self.roots:
                links += _link_entries(folder, made, own=self.place.parent)
        self.shared = tuple(budget.shared)
        self.links.write_text("\n".join(links), "utf-8")
        originals = [path for link in links if (path := Path(link).resolve()).is_file()]
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
                return self._copied(number) / path.relative_to(root)
        return path

    def original(self, path: str) -> str:
        """Return the user's path for one in the copy."""
        for made, folder in self.pairs():
            if Path(path).is_relative_to(made):
                return str(folder / Path(path).relative_to(made))
        return path

    def folders(self) -> tuple[str, ...]:
        """Return the folders of the copy."""
        return tuple(str(self._copied(number)) for number in range(len(self.roots)))

    def pairs(self) -> Iterator[tuple[Path, Path]]:
        """Return the folders of the copy and those above them, each with the user's; inner ones first."""
        for number, root in enumerate(self.roots):
            made, folder = self._copied(number), root
            yield made, folder
            while made != self.place / str(number):
                made, folder = made.parent, folder.parent
                yield made, folder

    def _copied(self, number: int) -> Path:
        names = self.roots[number].parts[1:]
        return Path(self.place, str(number), *names[-_ABOVE:])


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


def _link_entries(source: Path, target: Path, *, own: Path | None = None) -> list[str]:
    """Link what a folder has and the target has not; return the links."""
    links = []
    for entry in islice(_entries(source), _MOST_BESIDE):
        made = target / entry.name
        if Path(entry.path) != own and not made.exists():
            made.symlink_to(entry.path)
            links.append(str(made))
    return links


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
    try:
        if size <= _LARGE and budget.bytes + size <= _MOST_BYTES:
            shutil.copy2(entry.path, made)
            budget.bytes += size
            return
    except OSError:  # a file that cannot be read: the script meets the same error
        made.unlink(missing_ok=True)
    made.symlink_to(entry.path)
    links.append(str(made))
