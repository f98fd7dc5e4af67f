"""Read and validate the section ``[tool.halfguard.lint]`` of a ``pyproject.toml``."""

from __future__ import annotations

import difflib
import fnmatch
import logging
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfguard.errors import ConfigError
from halfguard.lint.registry import select_rules
from halfguard.lint.rule import Rule

DEFAULT_EXCLUDE = (
    ".*", "__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Selected rules and excluded files."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    root: Path = Path()

    def rules(self) -> tuple[Rule, ...]:
        return select_rules(self.select, self.ignore)

    def excludes(self, path: Path) -> bool:
        """Return whether the settings exclude a file, even if it was named on the command line."""
        return any(_matches(self._relative(path), pattern) for pattern in self.exclude)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """Return the prefixes of the codes that are ignored in one file."""
        if not self.per_file_ignores:
            return ()
        relative = self._relative(Path(path))
        ignores = self.per_file_ignores.items()
        return tuple(c for pattern, codes in ignores if _matches(relative, pattern) for c in codes)

    def _relative(self, path: Path) -> str:
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return path.as_posix()


def _matches(path: str, pattern: str) -> bool:
    """Return whether a pattern matches the path, its beginning, or one of its parts."""
    pattern = pattern.removeprefix("./").rstrip("/")
    parts = path.split("/")
    beginnings = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(p, pattern) for p in (*parts, *beginnings))


def load_settings(start: Path) -> Settings:
    """Load the settings for a path from the nearest ``pyproject.toml`` that has the section."""
    start = start.resolve()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            section = _section(file)
            if section is not None:
                return _validated(file, section)
    return Settings(root=start if start.is_dir() else start.parent)


def _section(file: Path) -> dict[str, object] | None:
    try:
        body = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        # It is somebody else's file as well: what lint cannot read there is no reason to check nothing.
        logging.getLogger("halfguard").warning(
            ("%s is ignored because it cannot be read: %s"), file, error
        )
        return None
    section: object = body
    for name in ("tool", "halfguard", "lint"):
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None


def _validated(file: Path, section: dict[str, object]) -> Settings:
    """Return settings from the values of a section, each checked for its type."""
    checks: dict[str, Callable[[object], object]] = {
        "select": _strings,
        "ignore": _strings,
        "exclude": _strings,
        "per-file-ignores": _table,
    }
    values: dict[str, Any] = {}
    for name, value in section.items():
        try:
            values[name.replace("-", "_")] = checks[name](value)
        except (KeyError, TypeError) as error:
            reason = "this key does not exist" if isinstance(error, KeyError) else str(error)
            near = [] if name in checks else difflib.get_close_matches(name, checks, 1, cutoff=0.5)
            raise ConfigError(
                f"{file}: [tool.halfguard.lint] is invalid at '{name}': {reason}.",
                cure="".join(f"Did you mean {key}? " for key in near)
                + f"Allowed keys: {', '.join(checks)}.",
            ) from error
    settings = Settings(root=file.parent, **values)
    settings.rules()  # reports an unknown code now, not at the first file
    return settings


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise TypeError("it must be a list of strings")
    return tuple(value)


def _table(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise TypeError("it must be a table of lists")
    return {str(pattern): _strings(codes) for pattern, codes in value.items()}
