"""A copy of the working folder for each pass, and what a script does beyond it.

Small files are copied, up to a limit. Large ones, folders with too many files, and what lies beside the
working folder (a script may read ``../data``) are links, which become real when Python writes there: a file
a copy, a folder a folder of links. Writing elsewhere, deleting, and talking to other machines are seen by
Python's audit events and told to the user. Files that a library writes without Python, other than
``torch.save``, are not seen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from halfguard.formats import dtype_name
from halfguard.investigation.passes import PassPlan

_LARGE = 8 * 2**20  # bytes of a file that is linked
_MOST_BYTES = 512 * 2**20  # copied in all; then files are linked
_MOST_ENTRIES = 20_000  # files and folders; then folders are linked as a whole
_ABOVE = 3  # folders above the user's, to which paths such as ``../data`` lead
_MOST_BESIDE = 5_000  # entries of one of them that are linked
# Folders that training scripts read, at most.
_LINKED = frozenset({".git", ".venv", "venv", "node_modules", ".tox", ".mypy_cache", ".ruff_cache"})


def make_own(path: str, place: str, *, truncates: bool = False) -> bool:
    """Make a path and the folders above it real before it is written; return whether it is in the copy."""
    if not place or not Path(path).is_relative_to(place):
        return False
    current, parts = Path(place), Path(path).relative_to(place).parts
    for part in parts:
        current /= part
        if not current.is_symlink():
            continue
        with contextlib.suppress(OSError):
            original = current.resolve(strict=True)
            if original.is_relative_to(place):  # a link of the user's own
                return make_own(str(original.joinpath(*parts[parts.index(part) + 1 :])), place)
            current.unlink()
            if original.is_dir():
                current.mkdir()
                _link_entries(original, current)
            elif truncates:
                current.touch()
            else:
                shutil.copyfile(original, current)
    return True


@dataclass
class WorkingCopy:
    """Copies folders below one place, the same place each time."""

    place: Path
    roots: tuple[Path, ...]
    _linked: dict[Path, tuple[int, int]] = field(default_factory=dict)  # originals: size, time
    _entries = _bytes = 0  # that were copied

    def make(self) -> None:
        """Make the copies, as they were before the first pass."""
        self.remove()
        self._entries = self._bytes = 0
        for root in self.roots:
            self._copy(root, self.inside(root))
        for made, folder in self.pairs():
            if folder not in self.roots:
                _link_entries(folder, made, own=self.place.parent)

    def changed(self) -> list[Path]:
        """Return the originals of links that were changed: by a library that Python does not see."""
        return [path for path, before in self._linked.items() if _state(path) != before]

    def remove(self) -> None:
        """Remove the copies. Links are removed, not what they point to."""
        shutil.rmtree(self.place, ignore_errors=True)

    def inside(self, path: Path) -> Path:
        """Return where a path of the user is in the copy; itself if it was not copied."""
        for number, root in enumerate(self.roots):
            if path.is_relative_to(root):
                return self._copied(number) / path.relative_to(root)
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

    def _copy(self, source: Path, target: Path) -> None:
        """Copy breadth first, so that what is linked as a whole lies deep, or is large.

        The folder of the copies is left out: a script may run in the folder of temporary files.
        """
        target.mkdir(parents=True)
        waiting = [(source, target)]
        for folder, copy in waiting:
            for entry in _entries(folder):
                if Path(entry.path) == self.place.parent:
                    continue
                made, self._entries = copy / entry.name, self._entries + 1
                if entry.is_symlink():
                    made.symlink_to(_link_target(Path(entry.path), source))
                elif entry.is_dir():
                    if entry.name in _LINKED or self._entries > _MOST_ENTRIES:
                        made.symlink_to(entry.path)
                    else:
                        made.mkdir()
                        waiting.append((Path(entry.path), made))
                elif entry.is_file() and not self._copy_file(entry, made):
                    made.symlink_to(entry.path)
                    self._linked.setdefault(Path(entry.path), _state(Path(entry.path)))

    def _copy_file(self, entry: os.DirEntry[str], made: Path) -> bool:
        """Copy a small file; return whether that was done."""
        size = entry.stat().st_size
        if size > _LARGE or self._bytes + size > _MOST_BYTES:
            return False
        try:
            shutil.copy2(entry.path, made)
        except OSError:  # a file that cannot be read: the script meets the same error
            made.unlink(missing_ok=True)
            return False
        self._bytes += size
        return True


def _state(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns


def _link_entries(source: Path, target: Path, *, own: Path | None = None) -> None:
    """Link what a folder has and the target has not."""
    for entry in islice(_entries(source), _MOST_BESIDE):
        made = target / entry.name
        if Path(entry.path) != own and not made.exists():
            made.symlink_to(entry.path)


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


_MOST_EFFECTS = 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REMOVALS = {"os.remove", "os.rmdir", "os.rename", "shutil.rmtree"}
_ADDITIONS = {"os.mkdir", "os.symlink", "os.link"}
_CHANGES = {"os.truncate", "os.chmod", "os.utime", "os.chown", "os.setxattr", "sqlite3.connect"}
_LOCAL = ("127.", "::1", "localhost")


class Surroundings:
    """Collects effects outside of the copy."""

    def __init__(self, plan: PassPlan) -> None:
        self.autocast_off = ""
        self._regions: dict[str, None] = {}
        self.spawns = False  # the script starts ranks by itself
        self._effects: dict[str, None] = {}
        self._place = plan.copies
        caches = (tempfile.gettempdir(), "/dev", "/proc", str(Path.home() / ".cache"))
        self._ours = (*plan.isolated, *caches)
        # The folder of the copies has records of this pass too.
        self._folders = (*plan.isolated, *((str(Path(plan.copies).parent),) if plan.copies else ()))
        self._users = plan.originals

    @property
    def regions(self) -> tuple[str, ...]:
        """Device and dtype of each kind of autocast region that was entered while it was enabled."""
        return tuple(self._regions)

    @property
    def effects(self) -> tuple[str, ...]:
        """What happened outside, each once."""
        return tuple(self._effects)

    def watch(self) -> None:
        """Begin to listen; Python has no way to stop it."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = flags & _WRITES if isinstance(flags, int) else set(mode or "") & set("wax+")
            if writes and isinstance(path, str | bytes | os.PathLike):
                self._written(path, truncates="w" in (mode or ""))
        elif event in _CHANGES and isinstance(args[0], str | bytes | os.PathLike):
            self._written(args[0], truncates=False)
        elif event in _ADDITIONS | _REMOVALS:
            paths = [
                _absolute(one) for one in args[:2] if isinstance(one, str | bytes | os.PathLike)
            ]
            for path in paths:
                # A link is removed itself, not what it points to; rmtree refuses a link.
                make_own(path if event == "shutil.rmtree" else os.path.dirname(path), self._place)  # noqa: PTH120
            if event in _REMOVALS and paths:
                folder, name = os.path.split(paths[0])
                self._note("removed or renamed", os.path.join(os.path.realpath(folder), name))  # noqa: PTH118
        elif event == "socket.connect" and isinstance(args[1], tuple):
            host = str(args[1][0])
            if not host.startswith(_LOCAL):
                self._effects.setdefault(f"connected to {host}:{args[1][1]}")

    def _written(self, path: str | bytes | os.PathLike[Any], *, truncates: bool) -> None:
        text = _absolute(path)
        make_own(text, self._place, truncates=truncates)
        self._note("wrote", os.path.realpath(text))

    def _note(self, what: str, full: str) -> None:
        """Note an effect on a path from which links are gone."""
        elsewhere = not full.startswith(self._ours)
        users = full.startswith(self._users) and not full.startswith(self._folders)
        if (elsewhere or users) and len(self._effects) < _MOST_EFFECTS:
            self._effects.setdefault(f"{what} {full}")

    def on_saving(self, path: str) -> None:
        self._written(path, truncates=True)

    def on_spawned(self) -> None:
        self.spawns = True

    def on_autocast_made(self, region: Any, device: str) -> None:
        if device and not region._enabled and device != "cpu":
            self.autocast_off = device

    def on_autocast_entered(self, region: Any) -> None:
        if region._enabled:
            dtype = dtype_name(region.fast_dtype)
            self._regions.setdefault(f"{region.device} {dtype}")


def _absolute(path: str | bytes | os.PathLike[Any]) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - no file system access here
