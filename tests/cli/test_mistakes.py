"""A mistake in a call ends with exit code 2 and a sentence: nothing is printed, and no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from tests.cli.command_result import Run
from tests.cli.test_validate import SPEC
from tests.comparison.logs import write_fp32_and_fp16
from tests.support.cases import each
from tests.support.docs import ROOT

pytestmark = pytest.mark.usefixtures("seed")  # rich draws from Python's random generator
JOBS = f"{ROOT}/examples/overflowing.py"
COMPARE = "compare fp32 fp16"
MISTAKES: list[tuple[str, ...]] = [
    (COMPARE, "--metric"),
    (f"{COMPARE} --metric val_los", "Did you mean val_loss?"),
    (f"{COMPARE} --metric train --lower-is-better", "no run has a metric 'train'"),
    (f"{COMPARE} --metric epoch", "Add --higher-is-better or --lower-is-better."),
    (f"{COMPARE} --metric val_loss --at first", "'first' is not one of last, best, tail"),
    (f"{COMPARE} --metric val_loss --html gone/page.html", "the folder of gone/page.html"),
    ("doctor --precision fp8", "fp8"),
    (f"doctor --gpu T4 {JOBS}:t5", "--gpu"),
    ("doctor --gpu T4 --batch-size 4", "--gpu"),
    ("doctor --gpu 'RTX 6000'", "Quadro RTX 6000", "RTX 6000 Ada"),
    ("doctor --gpu 'TITAN RT'", "TITAN RTX"),
    ("doctor --cost", "--cost"),
    (f"doctor {JOBS}:t5 --budget 2GB", "--cost"),
    (f"doctor {JOBS}:t5 --cost --budget '2 parsecs'", "2 parsecs"),
    ("doctor --batch-size 0", "--batch-size"),
    ("doctor no/such/file.py:build", "no/such/file.py"),
    ("lint", "Specify files or folders"),
    ("lint nowhere.py", "nowhere.py"),
    ("lint . --select HG9", "HG9"),
    ("lint wrong", "this key does not exist"),
    ("lint . --format xml", "xml"),
    ("presets fp16_saef", "no preset named 'fp16_saef'", "Did you mean fp16_safe?"),
    ("presets fp16_safe --for keras", "no framework named 'keras'", "Allowed: plain"),
    ("presets --for plain", "needs the name of a preset", "Presets are: balanced"),
    *(
        (f"{command} nowhere.py:f", "the file 'nowhere.py' does not exist")
        for command in ("probe", "plan")
    ),
    *((f"{command} {JOBS}:t6", "Did you mean: t5") for command in ("probe", "plan")),
    *(
        (f"{command} {JOBS}:stretch", "with one argument, the seed")
        for command in ("probe", "plan")
    ),
    *(
        (f"{command} {JOBS}:t5 --precision half", "'half' is unknown")
        for command in ("probe", "plan")
    ),
    (f"probe {JOBS}:t5 --html no/such/file", "the folder of no/such/file does not exist"),
    (f"plan {JOBS}:t5 --output no/such/file", "the folder of no/such/file does not exist"),
    (f"plan {JOBS}:rms_norm --for jax", "known: transformers"),
    ("replay nowhere", "is not an incident"),
    ("replay nowhere --html no/such/file", "the folder of no/such/file does not exist"),
    ("report nowhere", "is not a run folder"),
    ("report nowhere --html no/such/file", "the folder of no/such/file does not exist"),
    ("rule HG999", "HG999"),
    ("why --stepz 5 train.py", "--stepz is not an option"),
    ("validate gone.yaml", "gone.yaml"),
    ("validate bad.yaml", "thresholds.pas"),
    ("validate approve . --by Ada", "verdict.json"),
]


@pytest.fixture
def folder(tmp_path: Path) -> None:
    """Write what the calls read."""
    write_fp32_and_fp16(tmp_path, 0.0)
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong/pyproject.toml").write_text("[tool.halfguard.lint]\nwrong = 1\n")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(SPEC | {"thresholds": {"pas": 1}}))


@pytest.mark.usefixtures("folder")
@each("mistake", MISTAKES)
def test_a_mistake_is_answered_in_a_sentence(mistake: tuple[str, ...], halfguard: Run) -> None:
    call, *words = mistake
    done = halfguard(*shlex.split(call))
    said = " ".join(done.err.replace("│", " ").split())
    assert (done.exit_code, done.out) == (2, ""), said
    assert [word for word in words if word not in said] == [], said
    assert "Traceback" not in said
