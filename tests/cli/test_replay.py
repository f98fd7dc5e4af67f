"""``halfguard replay``: one page, exit codes, and a clear message for every user error."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.incident import Incident
from halfguard.records.autopsy import Autopsy
from tests.cli.command_result import Run
from tests.replaying.helper import broken, glitched, overflowing

pytestmark = pytest.mark.usefixtures("seed")
TRAIN = """
from tests.replaying.helper import job as _job, nn

def job(seed):
    return _job()

def other(seed):
    return _job(nn.Linear(3, 3))

def fails(seed):
    raise KeyError("missing")
"""


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    (tmp_path / "train.py").write_text(TRAIN)
    return broken(tmp_path / "runs", [overflowing()], entry="train.py:job")


def test_one_page_with_everything_in_every_form(
    incident: Incident, tmp_path: Path, halfguard: Run
) -> None:
    result = halfguard("replay", incident.folder, "--html", "a.html", "--markdown", "a.md")
    assert result.exit_code == 0, result.err
    for part in ("the loss was not finite", "bit-identical", "returned the first NaN or Inf",
                 "the whole step in", "Recommendation", "- module: '1'"):  # fmt: skip
        assert part in result.out, result.out
    assert "returned the first NaN or Inf" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.md").read_text().startswith("# Incident 000000-r0, step 0: ")
    as_json = halfguard("replay", incident.folder, "--json")
    assert Autopsy.from_json(as_json.out).cure is not None


def test_what_does_not_break_again_ends_with_one(tmp_path: Path, halfguard: Run) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    incident, _ = glitched(tmp_path / "runs", entry="train.py:job")
    result = halfguard("replay", incident.folder)
    assert result.exit_code == 1
    assert "Possible causes" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{incident}", "--entry", "train.py:jab"], "no function 'jab'"),
        (["{incident}", "--entry", "train.py:fails"], "KeyError: 'missing'"),
        (["{incident}", "--entry", "train.py:other"], "does not match the incident"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(
    arguments: list[str], message: str, incident: Incident, halfguard: Run
) -> None:
    result = halfguard("replay", *(text.format(incident=incident.folder) for text in arguments))
    assert result.exit_code == 2
    assert message in result.err


def test_a_broken_folder_is_refused(incident: Incident, halfguard: Run) -> None:
    path = incident.folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    result = halfguard("replay", incident.folder)
    assert result.exit_code == 2
    assert "tensors.safetensors" in result.err
