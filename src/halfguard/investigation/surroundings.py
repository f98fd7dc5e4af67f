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

import torch

from halfguard.investigation.passes import PassPlan
from halfguard.investigation.working_copy import Links

_MOST_EFFECTS = 20
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REMOVALS = {"os.remove", "os.rmdir", "os.rename", "shutil.rmtree"}
_ADDITIONS = {"os.mkdir", "os.symlink", "os.link"}
_CHANGES = {"os.truncate", "os.chmod", "os.utime", "os.chown", "os.setxattr", "sqlite3.connect"}
_LOCAL = ("127.", "::1", "localhost")


class Surroundings:
    """Collects effects outside of some folders."""

    def __init__(self, plan: PassPlan) -> None:
        self.autocast_off = ""
        self.spawns = False  # the script starts ranks by itself
        self._effects: dict[str, None] = {}
        # The folder of the copies has records of this pass too; links lie in it.
        own = (str(Path(plan.links).parent),) if plan.links else ()
        self._folders = (*plan.isolated, *own)
        caches = (tempfile.gettempdir(), "/dev", "/proc", str(Path.home() / ".cache"))
        self._ours = (*plan.isolated, *caches)
        self._users = plan.originals
        self._links = Links.read(plan.links)

    @property
    def effects(self) -> tuple[str, ...]:
        """What happened outside, each once."""
        return tuple(self._effects)

    def watch(self) -> None:
        """Begin to listen; Python has no way to stop it."""
        sys.addaudithook(self._heard)
        self._watch_save()
        self._watch_autocast()
        self._watch_spawn()

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = flags & _WRITES if isinstance(flags, int) else set(mode or "") & set("wax+")
            if writes and isinstance(path, str | bytes | os.PathLike):
                self._written(os.fspath(path), truncates="w" in (mode or ""))
        elif event in _CHANGES and isinstance(args[0], str | bytes | os.PathLike):
            self._written(os.fspath(args[0]), truncates=False)
        elif event in _ADDITIONS:
            self._open_parents(args[:2])
        elif event in _REMOVALS and isinstance(args[0], str | os.PathLike):
            self._open_parents(args[:2])
            if event == "shutil.rmtree":  # which refuses a link
                self._links.make_real(os.path.abspath(os.fspath(args[0])), truncates=False)  # noqa: PTH100
            folder, name = os.path.split(os.path.abspath(os.fspath(args[0])))  # noqa: PTH100
            # A link is removed itself, not what it points to.
            self._note("removed or renamed", os.path.join(os.path.realpath(folder), name))  # noqa: PTH118
        elif event == "socket.connect" and isinstance(args[1], tuple):
            host = str(args[1][0])
            if not host.startswith(_LOCAL):
                self._effects.setdefault(f"connected to {host}:{args[1][1]}")

    def _open_parents(self, paths: tuple[Any, ...]) -> None:
        for path in paths:
            if isinstance(path, str | os.PathLike):
                self._links.open_parents(os.path.abspath(os.fspath(path)))  # noqa: PTH100

    def _written(self, path: str | bytes, *, truncates: bool) -> None:
        text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - no file system access here
        if not self._links.make_real(text, truncates=truncates):
            self._note("wrote", os.path.realpath(text))

    def _note(self, what: str, full: str) -> None:
        """Note an effect on a path, from which links of the user, which lead out of the copy, are gone."""
        elsewhere = not full.startswith(self._ours)
        users = full.startswith(self._users) and not full.startswith(self._folders)
        if (elsewhere or users) and len(self._effects) < _MOST_EFFECTS:
            self._effects.setdefault(f"{what} {full}")

    def _watch_save(self) -> None:
        original: Any = torch.save

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                self._written(os.fspath(f), truncates=True)
            return original(obj, f, *args, **kwargs)

        torch.save = save

    def _watch_spawn(self) -> None:
        processes: Any = torch.multiprocessing
        original: Any = processes.spawn

        def spawn(*args: Any, **kwargs: Any) -> Any:
            self.spawns = True
            return original(*args, **kwargs)

        processes.spawn = spawn

    def _watch_autocast(self) -> None:
        original: Any = torch.amp.autocast_mode.autocast.__init__

        def __init__(region: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(region, device_type, *args, **kwargs)
            enabled = kwargs.get("enabled", args[1] if len(args) > 1 else True)
            if enabled and not region._enabled and device_type != "cpu":
                self.autocast_off = device_type

        setattr(torch.amp.autocast_mode.autocast, __init__.__name__, __init__)

    def source_files(self) -> tuple[str, ...]:
        """Return the source files that ran from the working folder."""
        loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        users = (*self._folders, *self._users)
        return tuple(sorted({f for f in loaded if f and f.endswith(".py") and f.startswith(users)}))
