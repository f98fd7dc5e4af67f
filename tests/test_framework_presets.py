"""Every preset in every framework: what is printed is loaded, run, and does what the preset says."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
import yaml

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig, preset_names
from halfguard.guard.presets.frameworks import (
    FRAMEWORKS,
    framework_text,
    preset_purpose,
    unsupported_settings,
)
from tests.support.docs import ROOT
from tests.support.preset_runs import (
    BATCHES,
    WITHOUT_FP16_ON_A_CPU,
    Seen,
    wanted_norm,
)

ALL = [(framework, name) for framework in FRAMEWORKS for name in preset_names()]


def run(frameworks: Sequence[str]) -> list[Seen]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.preset_runs", *frameworks],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("SEEN ") for line in done.stdout.splitlines() if "SEEN " in line]
    return [Seen(**json.loads(line)) for line in lines]


Runs = dict[tuple[str, str], Seen]


@pytest.fixture(scope="module")
def seen() -> list[Seen]:
    # Two processes: Lightning and Hydra share one trainer, the others need no Lightning.
    return [*run(["plain", "accelerate", "transformers"]), *run(["lightning", "hydra"])]


@pytest.fixture(scope="module")
def runs(seen: list[Seen]) -> Runs:
    return {(one.framework, one.preset): one for one in seen if not one.as_printed}


@pytest.fixture(scope="module")
def runs_on_a_cpu(seen: list[Seen]) -> Runs:
    return {(one.framework, one.preset): one for one in seen if one.as_printed}


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "name"), ALL)
def test_the_framework_does_what_the_preset_says(runs: Runs, framework: str, name: str) -> None:
    seen, config = runs[framework, name], GuardConfig.load(name)
    assert seen.forward == ["float16"] * BATCHES, "precision"
    assert len(seen.norms) == BATCHES // config.accumulate, "accumulation"
    limit = wanted_norm(config) if config.clip is None else config.clip.max_norm
    assert seen.norms == pytest.approx([limit] * len(seen.norms), rel=1e-3), "clipping by norm"
    scale = config.scale.model_dump()
    assert seen.scale.items() <= scale.items(), "loss scale"
    assert {"init", "growth_factor", "backoff_factor", "growth_interval"} <= seen.scale.keys()
    bounded = {"floor", "ceiling"} <= seen.scale.keys()
    assert bounded != any(
        "the scale between" in line for line in unsupported_settings(config, framework)
    )
    assert seen.weights == ("float16" if config.precision == "fp16-weights" else "float32")
    assert seen.updated == "float32", "what the optimizer updates"


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
def test_what_a_framework_does_by_itself_on_a_cpu_is_what_the_text_says(
    runs: Runs, runs_on_a_cpu: Runs, name: str
) -> None:
    config = GuardConfig.load(name)
    half = config.precision == "fp16-weights"
    for framework in WITHOUT_FP16_ON_A_CPU:
        seen, text = runs_on_a_cpu[framework, name], framework_text(name, framework)
        assert seen.forward == ["float16" if half else "float32"] * BATCHES
        assert bool(seen.scale) == half
        assert ("trains in FP32, without a warning" in text) == (not half)
        assert ("runs in FP16 for real" in text) == half
        limit = wanted_norm(config) if config.clip is None else config.clip.max_norm
        assert seen.norms == pytest.approx([limit] * len(seen.norms), rel=1e-3)
    for framework in ("lightning", "hydra"):
        assert runs[framework, name].setting == "16-mixed"
        assert "runs in FP16 for real" in framework_text(name, framework)


@pytest.mark.slow
def test_lightnings_words_for_a_device_become_torchs(runs: Runs) -> None:
    name = "native_fp16"  # the others leave it to the plugin
    for there, found in runs["lightning", name].devices.items():
        assert found == {"auto": there, "gpu": there, "cpu": "cpu", "cuda": "cuda", "mps": "mps"}
    assert runs["lightning", name].devices.keys() == {"cpu", "cuda", "mps"}


@pytest.mark.parametrize(("framework", "name"), ALL)
def test_the_text_is_whole_and_says_what_is_left_out(framework: str, name: str) -> None:
    text, config = framework_text(name, framework), GuardConfig.load(name)
    assert "None" not in text.replace("-> None", "").replace("is not None", "").replace(
        ", None)", ""
    )
    assert "halfguard doctor job.py:build" in text
    assert preset_purpose(name) in text
    assert all(f"# - {line}\n" in text for line in unsupported_settings(config, framework))
    assert all(len(line) <= 110 for line in text.splitlines())
    assert yaml.safe_load(text) if framework == "hydra" else ast.parse(text)


def test_limits_follow_from_the_configuration() -> None:
    ultra = GuardConfig.load("ultra_conservative")
    said = " ".join(unsupported_settings(ultra, "transformers"))
    for words in ("repeat", "above 2", "10 bad", "4 sigma", "snapshot", "BatchNorm"):
        assert words in said
    for complete in ("plain", "lightning", "hydra"):
        assert list(unsupported_settings(ultra, complete)) == []
    default = " ".join(unsupported_settings(GuardConfig.load("default"), "transformers"))
    for words in ("repeat", "sigma", "snapshot", "above"):
        assert words not in default
    odd = GuardConfig.load({"clip": {"max_norm": 1.0, "norm_type": 1.0}})
    assert "clip by the 1-norm" in " ".join(unsupported_settings(odd, "transformers"))
    assert "clip by the" not in " ".join(unsupported_settings(odd, "accelerate"))


def test_the_safe_ocr_trainer() -> None:
    config = yaml.safe_load(framework_text("fp16_safe", "hydra"))
    assert config["_target_"] == "lightning.pytorch.Trainer"
    (plugin,) = config["plugins"]
    assert plugin["_target_"] == "halfguard.integrations.lightning.GuardPrecision"
    assert plugin["config"] == "fp16_safe"
    assert (config["gradient_clip_val"], config["gradient_clip_algorithm"]) == (5.0, "norm")
    assert config["accumulate_grad_batches"] == 2
    assert "a larger value clips less" in framework_text("fp16_safe", "hydra")


def test_what_does_not_exist_is_answered_with_what_looks_like_it() -> None:
    with pytest.raises(UsageError, match="Did you mean fp16_safe"):
        framework_text("fp16-safe", "plain")
    with pytest.raises(UsageError, match="Did you mean lightning"):
        framework_text("fp16_safe", "lightening")
