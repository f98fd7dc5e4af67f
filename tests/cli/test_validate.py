"""``halfguard validate``: the verdict, its files, its exit code, its sign-off."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml

import halfguard as hg
from halfguard.records.study import Study, Verdict, VerdictLabel
from halfguard.validation.finished_runs import FinishedRuns
from tests.cli.command_result import run_in
from tests.validation.helper import JOBS

SPEC = {
    "name": "small study",
    "entry": "job.py:overflowing",
    "candidates": ["fp16-mixed", "fp16-mixed guarded"],
    "seeds": 4,
    "steps": 100,
    "metric": {"name": "loss", "higher_is_better": False},
}
FILES = {"study.json", "verdict.json", "report.html", "report.md"}


halfguard = partial(run_in, columns=120)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one study for all tests, and return the folder in which it was run."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "job.py").write_text(JOBS.read_text())
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    result = halfguard(folder, "validate", "spec.yaml")
    assert result.exit_code == 1, result.err
    (folder / "output.txt").write_text(result.out)
    return folder


@pytest.mark.slow
def test_it_prints_and_keeps_its_results(study: Path) -> None:
    output = (study / "output.txt").read_text()
    assert output.splitlines()[0] == (
        "small study: fp16-mixed FAILS on loss, fp16-mixed guarded PASSES"
    )
    assert "fp16-mixed guarded" in output
    folder = study / "runs/small-study"
    assert {path.name for path in folder.iterdir()} >= FILES
    assert len(list((folder / "runs").iterdir())) == 14  # twelve runs and two speeds
    bare, guarded = Verdict.from_json((folder / "verdict.json").read_bytes()).comparisons
    assert bare.word is VerdictLabel.FAIL  # it skipped every step
    assert guarded.word is VerdictLabel.PASS  # it repeated every step
    kept = Study.from_json((folder / "study.json").read_bytes())
    assert {run.skipped for run in kept.runs if run.candidate == "fp16-mixed"} == {100}
    assert {run.retried for run in kept.runs if run.candidate == "fp16-mixed guarded"} == {100}


@pytest.mark.slow
def test_a_second_call_runs_nothing_and_says_the_same(study: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in study.glob("runs/small-study/runs/*")}
    result = halfguard(study, "validate", "--json", "spec.yaml")
    assert result.exit_code == 1
    assert json.loads(result.out)["kind"] == "verdict"
    assert Verdict.from_json(result.out).word is VerdictLabel.FAIL
    after = {path: path.stat().st_mtime_ns for path in study.glob("runs/small-study/runs/*")}
    assert before == after


def shown(folder: Path) -> dict[str, str]:
    """Return the files of a study without date and versions."""
    origin = re.compile(r'<p class="made">.*?</p>', re.DOTALL)
    return {name: origin.sub("", (folder / name).read_text()) for name in FILES}


@pytest.mark.slow
def test_from_python_it_leaves_the_same_files(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(study / "runs/small-study", tmp_path / "copy")
    written = shown(folder)
    for name in FILES:
        (folder / name).unlink()
    monkeypatch.chdir(study)
    assert hg.validate("spec.yaml", folder=folder).word is VerdictLabel.FAIL
    assert shown(folder) == written


@pytest.mark.slow
def test_a_sign_off_is_void_when_the_study_changes(study: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(study / "runs/small-study", tmp_path / "copy")
    result = halfguard(study, "validate", "approve", folder, "--by", "Ada Lovelace")
    assert result.exit_code == 0, result.err
    assert result.out.startswith("Signed by Ada Lovelace")
    again = halfguard(study, "validate", "spec.yaml", "-o", folder)  # the same study, judged later
    assert "FAIL signed by Ada Lovelace" in again.out
    assert "VOID" not in again.out
    (study / "shorter.yaml").write_text(yaml.safe_dump(SPEC | {"seeds": 3}))
    assert "VOID" in halfguard(study, "validate", "shorter.yaml", "-o", folder).out


@pytest.mark.slow
def test_an_interrupted_study_says_how_to_resume(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FinishedRuns, "save", interrupted)
    result = halfguard(study, "validate", "spec.yaml")
    assert result.exit_code == 130
    assert result.err.startswith("Interrupted. ")  # of no run: all are finished
    assert "run the same command to resume" in result.err


def test_an_interrupt_before_the_first_run_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "job.py").write_text(JOBS.read_text())
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    monkeypatch.setattr("halfguard.validation.study.missing_tasks", interrupted)
    result = halfguard(tmp_path, "validate", "spec.yaml")
    assert result.exit_code == 130
    assert "Interrupted. Finished runs are kept" in result.err


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("command", [["validate", "run"], ["plan"]])
def test_the_help_names_the_exit_code_of_an_interrupt(tmp_path: Path, command: list[str]) -> None:
    assert "130" in halfguard(tmp_path, *command, "--help").out
