"""A configuration that cannot be read is a ConfigError that names the file, whatever YAML raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.errors import ConfigError
from halfguard.records.config_file import parse_yaml, read_yaml


@pytest.mark.parametrize("value", ["2026-13-45", "2026-11-15 25:00:00", "!!int four"])
def test_a_value_that_only_looks_like_a_date_or_a_number(value: str, tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(f"plan: {value}\n")
    with pytest.raises(ConfigError, match=r"guard\.yaml contains a value .*\n.*quotes"):
        read_yaml(path)
    path.write_text(f"plan: '{value}'\n")
    assert read_yaml(path) == {"plan": value}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a: [1", "here is not YAML"), ("- a", "keys and values, not a list")],
)
def test_what_is_not_a_mapping(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_yaml(text, "here")


def test_an_empty_text_has_no_keys() -> None:
    assert parse_yaml("# nothing\n", "here") == {}
