"""The reference page lists every key of the configuration with its default."""

from __future__ import annotations

import re
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from halfguard.guard.config import GuardConfig, preset_names
from halfguard.records import Action, Cause
from tests.support.cases import each
from tests.support.docs import ROOT

PAGE = (ROOT / "docs" / "reference" / "guard.md").read_text()
_ROW = re.compile(r"^\| `([a-z_.]+)` \| (off|none|required|`[^|]+`) \|", re.MULTILINE)


def documented() -> dict[str, Any]:
    words = {"off": None, "none": None, "required": PydanticUndefined}
    table = PAGE.split("\n## Configuration\n")[1].split("\n## ")[0]
    rows = _ROW.findall(table)
    return {
        key: words[text] if text in words else yaml.safe_load(text.strip("`")) for key, text in rows
    }


def real(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key, annotation = f"{prefix}{name}", field.annotation
        section = next((a for a in (annotation, *get_args(annotation)) if _is_section(a)), None)
        if section is None or field.default is None:
            found[key] = list(field.default) if isinstance(field.default, tuple) else field.default
        if section is not None:
            found |= real(section, f"{key}.")
    return found


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def test_every_key_is_there_with_its_default() -> None:
    assert documented() == real(GuardConfig)


@each("name", [*Cause, *Action, *preset_names()])
def test_every_cause_action_and_preset_has_a_row(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE
