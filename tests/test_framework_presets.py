"""Every preset in every framework: what is printed is applied, run, and does what the preset says."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

import pytest
import yaml

from halfguard.errors import UsageError
from halfguard.guard.config import GuardConfig, preset_names
from halfguard.guard.presets.frameworks import FRAMEWORKS, framework_text, preset_purpose
from halfguard.guard.stepping.scaler import CEILING
from tests.support.cases import each
from tests.support.forks import forked_python
from tests.support.preset_runs import ALL, BATCHES, WITHOUT_FP16_ON_A_CPU, Seen, wanted_norm
from tests.support.programs import captured

Runs = dict[tuple[str, str, bool], Seen]


def run(frameworks: Sequence[str], group: str) -> list[Seen]:
    done = captured(forked_python(group), "-m", "tests.support.preset_runs", *frameworks)
    assert done.returncode == 0, done.stderr
    lines = [line.removeprefix("SEEN ") for line in done.stdout.splitlines() if "SEEN " in line]
    return [Seen(**json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def runs() -> Runs:
    # Two processes: Lightning and Hydra share one trainer, the others need no Lightning.
    seen = [
        *run(["plain", "accelerate", "transformers"], "transformers"),
        *run(["lightning", "hydra"], "lightning"),
    ]
    return {(one.framework, one.preset, one.as_printed): one for one in seen}


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "name"), ALL)
def test_the_framework_does_what_the_preset_says(runs: Runs, framework: str, name: str) -> None:
    seen, config = runs[framework, name, False], GuardConfig.load(name)
    assert seen.forward == ["float16"] * BATCHES, "precision"
    assert len(seen.norms) == BATCHES // config.accumulate, "accumulation"
    limit = wanted_norm(config) if config.clip is None else config.clip.max_norm
    assert seen.norms == pytest.approx([limit] * len(seen.norms), rel=1e-3), "clipping by norm"
    assert seen.scale == {"ceiling": CEILING} | config.scale.model_dump(), "loss scale"
    assert seen.weights == ("float16" if config.precision == "fp16-weights" else "float32")
    assert seen.updated == "float32", "what the optimizer updates"
    assert seen.journal, "where the text says"
    whole = config.model_dump(mode="json")
    hosts = {} if framework == "plain" else {"clip": None, "accumulate": 1}  # clips by itself
    assert seen.config == whole | hosts, "retry, spikes, rollback and all the rest"


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "name"), [one for one in ALL if one[0] != "plain"])
def test_what_a_framework_does_by_itself_on_a_cpu_is_what_the_text_says(
    runs: Runs, framework: str, name: str
) -> None:
    text, config = framework_text(name, framework), GuardConfig.load(name)
    if framework not in WITHOUT_FP16_ON_A_CPU:
        assert "On a CPU, this runs in FP16" in text  # the test above has run it on this CPU
        return
    assert "trains in FP32, and the guard logs a warning" in text
    seen = runs[framework, name, True]
    assert seen.forward == ["float32"] * BATCHES
    assert seen.config["precision"] == "fp32"
    limit = wanted_norm(config) if config.clip is None else config.clip.max_norm
    assert seen.norms == pytest.approx([limit] * len(seen.norms), rel=1e-3)


@each(("framework", "name"), ALL)
def test_the_text_is_whole(framework: str, name: str) -> None:
    text = framework_text(name, framework)
    assert "None" not in text.replace("is not None", "")
    assert "halfguard doctor job.py:build" in text
    assert preset_purpose(name) in text
    assert all(len(line) <= 110 for line in text.splitlines())
    if framework == "plain":
        assert ast.parse(text)
    if framework == "hydra":
        assert yaml.safe_load(text)


@each("name", preset_names())
def test_every_preset_clips_as_the_frameworks_do(name: str) -> None:
    clip = GuardConfig.load(name).clip
    assert clip is None or clip.norm_type == 2


@each("framework", FRAMEWORKS[1:])
def test_half_weights_have_no_adapter(framework: str) -> None:
    with pytest.raises(UsageError, match=f"the {framework} adapter does not support") as caught:
        framework_text("native_fp16", framework)
    assert "halfguard presets native_fp16 --for plain" in str(caught.value)


def test_the_safe_ocr_trainer() -> None:
    config = yaml.safe_load(framework_text("fp16_safe", "hydra"))
    assert config["_target_"] == "lightning.pytorch.Trainer"
    (plugin,) = config["plugins"]
    assert plugin["_target_"] == "halfguard.integrations.lightning.GuardPrecision"
    assert plugin["config"] == "fp16_safe"
    assert config["gradient_clip_val"] == 5.0
    assert config["accumulate_grad_batches"] == 2
    assert "a larger value clips less" in framework_text("fp16_safe", "hydra")


def test_what_does_not_exist_is_answered_with_what_looks_like_it() -> None:
    with pytest.raises(UsageError, match="Did you mean fp16_safe"):
        framework_text("fp16-safe", "plain")
    with pytest.raises(UsageError, match="Did you mean lightning"):
        framework_text("fp16_safe", "lightening")
