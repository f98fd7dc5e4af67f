"""Switches of mixed precision, and what turns them on in a project: a command, a setting, a default.

A file shows that it trains in float16 if a switch is on. What no command, setting or default of the project
turns on is an option that may never have been used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

_SWITCH = re.compile(
    r"(?i)(?<![a-z])amp(?![a-z])|fp_?16|float16|half|mixed|precision|(use|enable)_\w*scaler"
)
_SETTINGS = re.compile(r"[\w.-]*\.(json|ya?ml)|(config|settings|options|hparams|defaults)\.py")
_MAX_SETTINGS = 50_000  # bytes; a larger file is data
_HALF = rb"[\"']?(?:true|1\b|on\b|yes\b|fp16|float16|16\b|o[12]\b)"
_ANY = rb"[\w-]*(?:(?<![a-z])amp(?![a-z])|fp_?16|mixed[_-]precision)[\w-]*"


@dataclass(frozen=True)
class Switches:
    """The files of a project, in which a switch may be turned on."""

    contents: dict[Path, bytes] = field(default_factory=dict)
    _known: dict[str, bool] = field(default_factory=dict)

    def is_on(self, name: str) -> bool:
        """Return whether anything turns a switch on; an empty name stands for any switch."""
        if name not in self._known:
            self._known[name] = self._search(name)
        return self._known[name]

    def _search(self, name: str) -> bool:
        word = re.escape(name).replace("_", "[_-]").encode() if name else _ANY
        turned_on = re.compile(
            rb"(?i)(?<![\"'\w-])--" + word + rb"\b(?![=\s]+(?:false|0|no)\b)"
            rb"|(?<![\w-])" + word + rb"[\"'\]]*(?:\s*:\s*\w+)?(?:[\s:=,]+true|\s*[:=]\s*" + _HALF + rb")"
            rb"|--" + word + rb"[\"'][^()]{0,300}default\s*=\s*" + _HALF
            + rb"|[\"']-\w+[\"'],\s*[\"']--" + word + rb"[\"']"  # a command may give the short one
        )  # fmt: skip
        off = re.compile(rb"(?i)(?<![\w-])" + word + rb"[\"']?(?:\s*:\s*bool)?\s*[:=]\s*false\b")
        files = [(path, d) for path, d in self.contents.items() if not name or _holds(d, name)]
        # Where files of settings have a switch, the code does not decide.
        is_set = any(
            path.suffix != ".py" and _is_settings(path, d) and off.search(d) for path, d in files
        )
        return any(
            turned_on.search(d) for path, d in files if not (is_set and path.suffix == ".py")
        )


def is_switch(name: str) -> bool:
    """Return whether a name is that of a switch of mixed precision."""
    return bool(_SWITCH.search(name))


def _holds(data: bytes, name: str) -> bool:
    words = {name, name.replace("_", "-"), name.lower(), name.upper()}
    return any(word.encode() in data for word in words)


def _is_settings(path: Path, data: bytes) -> bool:
    return len(data) < _MAX_SETTINGS and bool(_SETTINGS.fullmatch(path.name.lower()))
