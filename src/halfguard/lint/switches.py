"""Switches of mixed precision, and what turns them on in a project: a command, a setting, a default.

A file shows that it trains in float16 if a switch is on. What no command, setting or default of the project
turns on is an option that may never have been used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from halfguard.lint.imports import Imports

_SWITCH = re.compile(
    r"(?i)(?<![a-z])amp(?![a-z])|fp_?16|float16|half|mixed|precision|(use|enable)_\w*scaler"
)
_SETTINGS = re.compile(r"[\w.-]*\.(json|ya?ml)|(config|settings|options|hparams|defaults)\.py")
_SHELL = (".sh", ".slurm", ".sbatch", ".bat")  # an option may be in a variable
_MAX_SETTINGS = 50_000  # bytes; a larger file is data
_PROSE = (".md", ".rst", ".txt")
_LITERAL = re.compile(
    r"true|false|yes|no|on|off|none|null||-?[\d.]+(e-?\d+)?|b?float(16|32)|[bf]p?(16|32)|16-\w+|o\d|full|half"
)
_HALF = rb"[\"']?(?:true|1\b|on\b|yes\b|fp16|float16|16\b|o[12]\b)"
_ANY = rb"[\w-]*(?:(?<![a-z])amp(?![a-z])|fp_?16|mixed[_-]precision)[\w-]*"


@dataclass(frozen=True)
class Switches:
    """The files of a project, in which a switch may be turned on."""

    contents: dict[Path, bytes] = field(default_factory=dict)
    imports: Imports = field(default_factory=lambda: Imports({}))
    _known: dict[tuple[str, Path], bool] = field(default_factory=dict)
    _values: dict[tuple[str, Path], list[str]] = field(default_factory=dict)

    def is_on(self, name: str, path: Path) -> bool:
        """Return whether anything turns a switch of a file on; an empty name stands for any of precision."""
        if (name, path) not in self._known:
            self._known[name, path] = self._search(name, path)
        return self._known[name, path]

    def _search(self, name: str, path: Path) -> bool:
        word = _word(name) if name else _ANY
        turned_on = re.compile(
            rb"(?i)(?<![\"'`\w-])--" + word + rb"\b(?![=\s]+(?:false|0|no)\b)"
            rb"|(?<![\w-])" + word + rb"[\"'\]]*(?:\s*:\s*\w+)?(?:[\s:=,]+true|\s*[:=]\s*" + _HALF + rb")"
            rb"|--" + word + rb"[\"'][^()]{0,300}default\s*=\s*" + _HALF
            + rb"|(?<![\w-])" + word + rb"\s*=\s*not\b"  # args.amp = not args.no_amp
            + rb"|[\"']-\w+[\"'],\s*[\"']--" + word + rb"[\"']"  # a command may give the short one
        )  # fmt: skip
        off = re.compile(rb"(?i)(?<![\w-])" + word + rb"[\"']?(?:\s*:\s*bool)?\s*[:=]\s*false\b")
        files = [(p, d) for p, d in self.contents.items() if not name or _holds(d, name)]
        # Where files of settings have a switch, the code does not decide.
        is_set = any(p.suffix != ".py" and _is_settings(p, d) and off.search(d) for p, d in files)
        users = self.imports.users(path) if self.imports.is_connected(path) else set()
        near = self.imports.reached(users) if users else self.imports.sources
        for file, data in files:
            if file.suffix == ".py":
                if file in near and not is_set and turned_on.search(data):
                    return True
            elif any(self._is_for(users, file, found) for found in turned_on.finditer(data)):
                return True
        return False

    def values(self, name: str, path: Path) -> list[str]:
        """Return the literals that the project gives a setting; where commands turn it on, those alone."""
        if (name, path) not in self._values:
            self._values[name, path] = list(self._read(name, path))
        return self._values[name, path]

    def _read(self, name: str, path: Path) -> list[str]:
        word = _word(name)
        given = re.compile(
            rb"(?i)(?<![\"'`\w-])--" + word + rb"\b(?![=\s]+[\"'\\]*[${])(?:[=\s]+([\w.+-]+))?"
        )
        assigned = re.compile(
            rb"(?i)(?<![\w-])"
            + word
            + rb"\\?[\"'\]]*(?:\s*:\s*\w+(?=\s*=))?\s*[:=]\s*\\?[\"']?([\w.+-]+)"
            rb"|--" + word + rb"[\"'][^()]{0,300}?(?:default\s*=\s*[\"']?([\w.+-]*)|(store_true))"
        )
        files = [(p, d) for p, d in self.contents.items() if _holds(d, name)]
        users = self.imports.users(path) if self.imports.is_connected(path) else set()
        near = self.imports.reached(users) if users else self.imports.sources
        texts = [(p, d) for p, d in files if p.suffix != ".py"]
        commands = [
            (m[1] or b"true").decode().lower()
            for p, d in texts for m in given.finditer(d) if self._is_for(users, p, m)
        ]  # fmt: skip
        if commands:
            return ["true" if c.startswith(("-", "\\")) else c for c in commands]
        found: list[str] = []
        for file, data in files:
            if file.suffix in _PROSE or (file.suffix == ".py" and file not in near):
                continue
            for match in assigned.finditer(data):
                if file.suffix == ".py" or self._is_for(users, file, match):
                    value = b"false" if match[3] else match[1] or match[2] or b""
                    found.append(value.decode().lower())
        return [value for value in found if _LITERAL.fullmatch(value)]

    def _is_for(self, users: set[Path], file: Path, found: re.Match[bytes]) -> bool:
        """Return whether a setting, or an option of a command, is for a program that uses a file."""
        if not users:
            return True
        if not found[0].startswith(b"--"):
            return any(self._scope(file) in user.parents for user in users)
        # In a text the option belongs to the last script that its paragraph names.
        paragraph = found.string[: found.start()].rpartition(b"\n\n")[2]
        given = self.imports.scripts(found.string if file.suffix in _SHELL else paragraph)
        scripts = set().union(*given) if file.suffix in _SHELL else given[-1] if given else set()
        return not scripts or not users.isdisjoint(scripts)

    def _scope(self, settings: Path) -> Path:
        """Return the folder of the code that settings are for: around their own, if code lies there too."""
        code = self.imports.folders
        if settings.parent in code:
            return settings.parent.parent
        return next((f for f in settings.parents if f in code), Path(settings.anchor))


def _word(name: str) -> bytes:
    return re.escape(name).replace("_", "[_-]").encode()


def is_switch(name: str) -> bool:
    """Return whether a name is that of a switch of mixed precision."""
    return bool(_SWITCH.search(name))


def _holds(data: bytes, name: str) -> bool:
    words = {name, name.replace("_", "-"), name.lower(), name.upper()}
    return any(word.encode() in data for word in words)


def _is_settings(path: Path, data: bytes) -> bool:
    return len(data) < _MAX_SETTINGS and bool(_SETTINGS.fullmatch(path.name.lower()))
