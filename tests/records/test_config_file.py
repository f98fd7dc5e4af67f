"""A configuration that cannot be read is a ConfigError that names the file, whatever YAML raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict
from tests.support.cases import each

from halfguard.errors import ConfigError
from halfguard.records.config_file import parse_yaml, read_yaml, validate_config


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


class Clip(BaseModel):
    model_config = ConfigDict(extra="forbid")

    max_norm: float
    foreach: bool = False


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    steps: int
    seeds: tuple[int, ...] = (0,)
    clip: Clip | None = None


@each(
    ("values", "message"),
    [
        ({}, "steps: it is required but missing."),
        ({"steps": "many"}, "steps: an integer is required (given: 'many')."),
        ({"steps": 1.5}, "steps: an integer is required (given: 1.5)."),
        ({"steps": 1, "seeds": "four"}, "seeds: a list is required (given: 'four')."),
        ({"steps": 1, "clip": 2.0}, "clip: keys and values are required (given: 2.0)."),
        (
            {"steps": 1, "clip": {"max_norm": "a"}},
            "clip.max_norm: a number is required (given: 'a').",
        ),
        (
            {"steps": 1, "clip": {"max_norm": 1, "foreach": "b"}},
            "clip.foreach: true or false is required (given: 'b').",
        ),
    ],
)
def test_a_wrong_value_is_told_without_the_words_of_python(
    values: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_config(Settings, values, where="a.yaml", kind="a job")
    assert caught.value.message == f"a.yaml is not a job: {message}"


@each(
    ("values", "cure"),
    [
        ({"step": 1}, "Did you mean steps?\nAllowed keys of a job: steps, seeds, clip."),
        (
            {"max_norm": 1.0},
            "The key belongs to a section: write clip: {max_norm: ...}.\nAllowed keys of a job:",
        ),
        ({"clip": {"norm": 1}}, "Did you mean max_norm?\nAllowed keys of clip: max_norm, foreach."),
        ({"zzz": 1}, "Allowed keys of a job: steps, seeds, clip."),
    ],
)
def test_an_unknown_key_is_answered_with_the_key_to_use(
    values: dict[str, object], cure: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_config(Settings, {"steps": 1, **values}, where="a.yaml", kind="a job")
    assert cure in caught.value.cure
