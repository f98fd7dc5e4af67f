"""``halfguard presets`` from the command line."""

from __future__ import annotations

import json
from functools import partial

import pytest
import yaml

from halfguard.guard.config import GuardConfig, preset_names, preset_text
from halfguard.guard.presets.frameworks import framework_text
from tests.cli.command_result import Run


@pytest.fixture
def presets(halfguard: Run, seed: object) -> Run:
    return partial(halfguard, "presets", columns=120)


def test_the_list_names_every_preset_with_its_numbers(presets: Run) -> None:
    done = presets()
    assert done.exit_code == 0, done.err
    words = " ".join(done.out.split())
    assert all(name in words for name in preset_names())
    assert "clip 5, accumulate 2" in words
    assert "scale 1024" in words
    listed = json.loads(presets("--json").out)
    assert [one["name"] for one in listed] == preset_names()
    assert all(GuardConfig.load(one["config"]) == GuardConfig.load(one["name"]) for one in listed)


def test_one_is_printed_as_in_its_file(presets: Run) -> None:
    done = presets("balanced")
    assert done.out == preset_text("balanced")
    assert GuardConfig.load(yaml.safe_load(done.out)) == GuardConfig.load("balanced")
    assert "learning rate" in done.out
    assert "temperature 2.0" in done.out


def test_one_is_printed_for_a_framework(presets: Run) -> None:
    result = json.loads(presets("fp16_safe", "--for", "hydra", "--json").out)
    assert result["text"] == framework_text("fp16_safe", "hydra")
    assert result["for"] == "hydra"
