"""A configuration is checked as a whole; the error names the key, the value and the allowed keys."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from halfguard.errors import ConfigError, UsageError
from halfguard.guard.config import GuardConfig, preset_names, preset_text
from halfguard.records import Action, Cause
from halfguard.records.config_file import parse_yaml
from tests.support.cases import each
from tests.support.docs import ROOT

HALF = {"precision": "fp16-weights"}
PRESETS = ["balanced", "default", "fp16_safe", "native_fp16", "ultra_conservative"]


def refused(values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        GuardConfig.load(values)
    assert isinstance(caught.value, UsageError)
    return str(caught.value)


# -- presets


def test_the_presets() -> None:
    assert preset_names() == PRESETS


@each("name", PRESETS)
def test_a_preset_loads_and_says_where_it_comes_from(name: str) -> None:
    assert isinstance(GuardConfig.load(name), GuardConfig)
    comments = [line for line in preset_text(name).splitlines() if line.startswith("#")]
    assert sum(line.startswith("# Source: ") for line in comments) == 1
    assert sum(line.startswith("# Corrected: ") for line in comments) == 1


def test_the_default_is_the_default() -> None:
    assert GuardConfig.load("default") == GuardConfig()


def test_presets_keep_the_values_that_were_asked_for() -> None:
    loaded = {name: GuardConfig.load(name) for name in PRESETS}
    safe, balanced = loaded["fp16_safe"], loaded["balanced"]
    assert (safe.clip.max_norm, safe.accumulate, safe.skip.on_nonfinite) == (5.0, 2, "retry_fp32")
    for config in (balanced, loaded["ultra_conservative"]):
        assert (config.clip.max_norm, config.skip.max_grad_norm) == (0.5, 2.0)
        assert config.skip.max_consecutive == 10
    assert loaded["native_fp16"].precision == "fp16-weights"


@each("name", PRESETS)
def test_a_configuration_survives_json_and_yaml(name: str, tmp_path: Path) -> None:
    config = GuardConfig.load(name)
    assert GuardConfig.load(config.model_dump(mode="json")) == config
    path = tmp_path / "guard.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert GuardConfig.load(path) == config == GuardConfig.load(str(path))


# -- sources of a configuration


def test_sources(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text("clip: {max_norm: 0.5}\nskip:\n  max_consecutive: 3\nscale: {floor: 1e-3}\n")
    from_file = GuardConfig.load(path)
    assert from_file.skip.max_consecutive == 3
    assert from_file.scale.floor == 1e-3  # YAML 1.1 reads it as a string
    mapping = {"clip": {"max_norm": 0.5}, "skip": {"max_consecutive": 3}, "scale": {"floor": 1e-3}}
    assert GuardConfig.load(mapping) == from_file
    assert GuardConfig.load(from_file) is from_file


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text("# nothing yet\n")
    assert GuardConfig.load(path) == GuardConfig()


@each("name", ["fp16_sade", "", "no/such/file.yaml", "."])
def test_neither_preset_nor_file(name: str) -> None:
    text = refused(name)
    assert repr(name) in text
    assert all(preset in text for preset in PRESETS)


# -- refused values, and their errors


@each(
    ("values", "named", "allowed"),
    [
        ({"clipp": {"max_norm": 1}}, ["clipp"], ["clip", "accumulate", "recovery"]),
        ({"skip": {"max_gradnorm": 2.5}}, ["skip.max_gradnorm", "2.5"], ["max_grad_norm"]),
        ({"recovery": {"evry": 7}}, ["recovery.evry", "7"], ["every", "max_rollbacks"]),
        ({"precision": "fp8"}, ["precision", "'fp8'"], ["'fp16-mixed'", "'bf16-mixed'"]),
        ({"skip": {"on_nonfinite": "ignore"}}, ["skip.on_nonfinite", "'ignore'"], ["'skip'"]),
        ({"recovery": {"ladder": ["pray"]}}, ["recovery.ladder", "'pray'"], ["'lower_lr'"]),
        ({"scale": {"growth_factor": 1}}, ["scale.growth_factor", "1"], ["greater than 1"]),
        ({"clip": {"max_norm": 0}}, ["clip.max_norm", "0"], ["greater than 0"]),
        ({"clip": {}}, ["clip.max_norm"], ["required"]),
        ({"accumulate": 0}, ["accumulate", "0"], ["greater than or equal to 1"]),
        ({"accumulate": "two"}, ["accumulate", "'two'"], ["integer"]),
        ({"skip": {"max_grad_norm": math.nan}}, ["skip.max_grad_norm", "nan"], []),
        ({"scale": 5}, ["scale", "5"], []),
        ({7: 8}, ["7"], []),
        ({"precison": "fp32"}, ["this key does not exist"], ["\nDid you mean precision?"]),
        ({"accumulate": 0, "precision": "fp8", "what": 1}, ["accumulate", "precision", "what"], []),
        # Half weights have no FP32 weights to repeat a step with.
        (HALF | {"skip": {"on_nonfinite": "retry_fp32"}}, ["retry_fp32", "fp16-weights"], []),
        # Infinity times a variance of 0 is NaN, and no step is within a limit of NaN.
        ({"spike": {"sigma": math.inf}}, ["inf"], []),
        ({"scale": {"growth_factor": math.inf}}, ["inf"], []),
        ({"scale": {"floor": math.inf, "init": math.inf}}, ["inf"], []),
    ],
)
def test_a_mistake_names_key_value_and_what_is_allowed(
    values: Any, named: list[str], allowed: list[str]
) -> None:
    text = refused(values)
    assert [word for word in named + allowed if word not in text] == [], text


@given(st.floats(min_value=1e-6, max_value=1e9), st.floats(1e-6, 1e9))
def test_the_scale_starts_at_its_floor_or_above(floor: float, init: float) -> None:
    values = {"scale": {"floor": floor, "init": init}}
    if floor <= init:
        assert GuardConfig.load(values).scale.init == init
    else:
        assert "must not exceed" in refused(values)


def test_the_infinity_norm_is_one() -> None:
    config = GuardConfig.load({"clip": {"max_norm": 1.0, "norm_type": math.inf}})
    assert math.isinf(config.clip.norm_type)


# -- untrusted files


@each("text", ["- a\n- b\n", "just words", "3.5", "[1, 2]", "true"])
def test_a_file_without_keys(text: str, tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text)
    assert "keys and values" in refused(path)


@each(
    "text",
    [
        "\xff\xfe\x00clip",  # no text at all
        "clip: !!python/object/apply:os.system ['true']",
        "clip: !!python/name:os.system",
        "!!python/object/new:dict [[]]",
        "clip: {max_norm: [",
        "\tclip: 1",
        "a: *nowhere",
        "clip: 1\n---\nclip: 2",
    ],
)
def test_a_file_that_is_not_plain_yaml(text: str, tmp_path: Path) -> None:
    path = tmp_path / "guard.yaml"
    path.write_text(text, "latin-1")
    assert str(path) in refused(path)


@pytest.mark.parametrize("key", ["clip", "anything", "accumulate"])
def test_a_yaml_bomb_is_refused_in_few_words(key: str, tmp_path: Path) -> None:
    # Nine lists, each holding the one before ten times, are small until they are printed.
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 6)]
    path = tmp_path / "guard.yaml"
    path.write_text("\n".join([*lines, f"{key}: *a5"]))
    assert len(refused(path)) < 5000


@each("key", sorted(GuardConfig.OTHER_NAMES))
def test_the_key_of_another_tool_is_answered_by_the_key_to_use(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GuardConfig.load({key: True})
    instead = GuardConfig.OTHER_NAMES[key]
    assert f"Instead of {key}, write {instead}." in str(caught.value)
    GuardConfig.load(parse_yaml(instead.partition(" (")[0], "the cure"))  # it can be written so


# -- the reference page lists every key with its default

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
