"""The section ``[tool.halfguard.lint]`` of a ``pyproject.toml``, checked before it is used."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from halfguard.errors import ConfigError
from halfguard.lint.registry import select
from halfguard.lint.rule import Rule

DEFAULT_EXCLUDE = (
    ".*", "__pycache__", "build", "dist", "env", "node_modules", "site-packages", "venv",
)  # fmt: skip


class Settings(BaseModel):
    """What to look for, and where not to look."""

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
        """The rules that are on."""
        return select(self.select, self.ignore, preview=self.preview)

    def excludes(self, path: Path) -> bool:
        """Whether the configuration leaves a file out, however it was named."""
        return any(_fits(self._relative(path), pattern) for pattern in self.exclude)

    def ignored_in(self, path: str) -> tuple[str, ...]:
        """The prefixes of codes that are ignored in one file."""
        if not self.per_file_ignores:
            return ()
        relative = self._relative(Path(path))
        fitting = (codes for p, codes in self.per_file_ignores.items() if _fits(relative, p))
        return tuple(code for codes in fitting for code in codes)

    def _relative(self, path: Path) -> str:
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return path.as_posix()


def _fits(path: str, pattern: str) -> bool:
    """Whether a pattern fits the path, its beginning, or one of its parts."""
    pattern = pattern.removeprefix("./").rstrip("/")
    parts = path.split("/")
    beginnings = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(p, pattern) for p in (*parts, *beginnings))


def load(start: Path) -> Settings:
    """The settings that hold at a path: those of the nearest ``pyproject.toml`` that has the section."""
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
            f"{file}: [tool.halfguard.lint] is wrong at '{place}': {first['msg']}.",
            cure="Its keys are select, ignore, per-file-ignores, exclude and preview.",
        ) from error
    settings.rules()  # an unknown code is a mistake to report now, not at the first file
    return settings
