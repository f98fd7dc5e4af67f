"""What a script does beyond its working folder, and the autocast that torch switched off.

The working folder is a copy, so what the script writes there does not matter. Writing elsewhere, deleting,
and talking to other machines are seen by Python's audit events and told to the user. Files that a library
writes without Python, other than ``torch.save``, are not seen.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from halfguard.investigation.passes import PassPlan
from halfguard.investigation.working_copy import make_own

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
        self.spawns = False  # the script starts ranks by itself
        self._effects: dict[str, None] = {}
        self._place = plan.copies
        caches = (tempfile.gettempdir(), "/dev", "/proc", str(Path.home() / ".cache"))
        self._ours = (*plan.isolated, *caches)
        # The folder of the copies has records of this pass too.
        self._folders = (*plan.isolated, *((str(Path(plan.copies).parent),) if plan.copies else ()))
        self._users = plan.originals

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
        """Note a file of ``torch.save``, which Python does not see."""
        self._written(path, truncates=True)

    def on_spawned(self) -> None:
        """Note that the script starts ranks."""
        self.spawns = True

    def on_autocast_made(self, region: Any, device: str) -> None:
        """Note autocast that torch has switched off."""
        if device and not region._enabled and device != "cpu":
            self.autocast_off = device


def _absolute(path: str | bytes | os.PathLike[Any]) -> str:
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - no file system access here
