"""Load configurations from YAML or mappings; errors name the key, the value and the allowed keys.

A configuration may list the keys that other tools use for the same thing (``OTHER_NAMES``): the error for one
of them gives the key to use here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from halfguard.errors import ConfigError

_MAX_PROBLEMS = 5
# The first word of pydantic's kind of error: what to say instead of its message.
_NEEDED = {
    "int": "an integer is required",
    "float": "a number is required",
    "bool": "true or false is required",
    "string": "a string is required",
    "tuple": "a list is required",
    "dict": "keys and values are required",
    "model": "keys and values are required",
}
Config = TypeVar("Config", bound=BaseModel)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the keys and values of a YAML file; an empty file has none."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}.") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Mapping[str, Any]:
    """Return the keys and values of a YAML text."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {error}.") from error
    except ValueError as error:  # such as 2026-13-45, which YAML takes for a date
        raise ConfigError(
            f"{where} contains a value that YAML interprets as a date or a number but cannot "
            f"read: {error}.",
            cure="Put quotes around the value if it is a string.",
        ) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must contain keys and values, not a {type(values).__name__}.")
    return values


def validate_config(
    cls: type[Config], values: Mapping[str, Any], *, where: str, kind: str
) -> Config:
    """Return the configuration, or raise a ConfigError; ``kind`` is what it should be: a study."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        items = error.errors(include_url=False)[:_MAX_PROBLEMS]
        problems = "; ".join(map(_describe_problem, items))
        lines = [line for item in items for line in _cures(cls, item, kind)]
        cures = dict.fromkeys(sorted(lines, key=lambda line: line.startswith("Allowed")))
        message = f"{where} is not {kind}: {problems}."
        raise ConfigError(message, cure="\n".join(cures)) from error
    except ValueError as error:  # from shlex (an unclosed quote) or float("x%")
        raise ConfigError(f"{where} is not {kind}: {error}.") from error


def _describe_problem(item: Any) -> str:
    key = ".".join(map(str, item["loc"])) or "values"
    value = item["input"]
    hidden = isinstance(value, Mapping | BaseModel) or item["type"] == "missing"
    given = "" if hidden else f" (given: {_short(value)})"
    return f"{key}: {_reason(item)}{given}"


def _reason(item: Any) -> str:
    kind, _, detail = item["type"].partition("_")
    if _is_unknown(item):
        return "this key does not exist"
    if kind == "missing":
        return "it is required but missing"
    if detail in {"type", "parsing", "from_float"} and kind in _NEEDED:
        return _NEEDED[kind]
    return str(item["msg"]).removeprefix("Value error, ")


def _is_unknown(item: Any) -> bool:
    return bool(item["type"] == "extra_forbidden")


def _short(value: object) -> str:
    if isinstance(value, str | int | float | bool | None):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    return f"a {type(value).__name__}"


def _cures(cls: type[BaseModel], item: Any, kind: str) -> list[str]:
    """Return what to write instead of an unknown key, and the keys of its section."""
    section, names = _find_section(cls, item["loc"])
    keys = [field.alias or name for name, field in section.model_fields.items()]
    allowed = f"Allowed keys of {'.'.join(names) or kind}: {', '.join(keys)}."
    if not _is_unknown(item):
        return [allowed]
    key = str(item["loc"][-1])
    other: Mapping[str, str] = getattr(section, "OTHER_NAMES", {})
    if key in other:
        return [f"Instead of {key}, write {other[key]}.", allowed]
    inside = [
        f"{name}: {{{key}: ...}}" for name, part in _sections(cls) if key in part.model_fields
    ]
    if inside:
        return [f"The key belongs to a section: write {' or '.join(inside)}.", allowed]
    near = difflib.get_close_matches(key, keys, 1, cutoff=0.5)
    return [*(f"Did you mean {name}?" for name in near), allowed]


def _sections(cls: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the keys of a configuration that have keys of their own."""
    for name, field in cls.model_fields.items():
        found = _section_of(field.annotation)
        if found is not None:
            yield field.alias or name, found


def _section_of(annotation: Any) -> type[BaseModel] | None:
    types = [annotation, *get_args(annotation)]
    return next((t for t in types if isinstance(t, type) and issubclass(t, BaseModel)), None)


def _find_section(
    section: type[BaseModel], loc: tuple[int | str, ...]
) -> tuple[type[BaseModel], list[str]]:
    """Return the section that contains the problem at ``loc``, and the names that lead to it."""
    names: list[str] = []
    for part in loc[:-1]:
        found = dict(_sections(section)).get(str(part))
        if found is None:
            break
        section = found
        names.append(str(part))
    return section, names
