"""Read and validate the section ``[tool.halfguard.lint]`` of a ``pyproject.toml``."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from halfguard.errors import ConfigError
from halfguard.lint.registry import select_rules
from halfguard.lint.rule import Rule

DEFAULT_EXCLUDE = (
    ".*", "__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv",
)  # fmt: skip


class Settings(BaseModel):
    """Selected rules and excluded files."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file_ignores: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, alias="per-file-ignores"
    )
    exclude: tuple[str, ...] = ()
    preview: bool = False
    root: Path = Path()

    def rules(self) -> tuple[Rule, ...]:
        return select_rules(self.select, self.ignore, preview=self.preview)

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
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    section: object = body
    for name in ("tool", "halfguard", "lint"):
        section = section.get(name) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else None


def _validated(file: Path, section: dict[str, object]) -> Settings:
    try:
        settings = Settings.model_validate({**section, "root": file.parent})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{file}: [tool.halfguard.lint] is invalid at '{place}': {first['msg']}.",
            cure="Its keys are select, ignore, per-file-ignores, exclude and preview.",
        ) from error
    settings.rules()  # reports an unknown code now, not at the first file
    return settings
