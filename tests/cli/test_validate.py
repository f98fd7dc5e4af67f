"""``halfguard validate``: the verdict, its files, its exit code, its sign-off."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from halfguard.cli import main
from halfguard.records.study import Study
from halfguard.records.verdict import Verdict, Word
from halfguard.validation.approval import standing
from halfguard.validation.ledger import Ledger
from tests.validation.helper import JOBS

SPEC = {
    "name": "small study",
    "entry": "job.py:overflowing",
    "candidates": ["fp16-mixed", "fp16-mixed guarded"],
    "seeds": 4,
    "steps": 100,
    "metric": {"name": "loss", "higher_is_better": False},
}


class Told(NamedTuple):
    code: object
    out: str
    err: str


def halfguard(folder: Path, *arguments: object) -> Told:
    """The program as a shell in ``folder`` runs it."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        patch.setattr(sys, "argv", ["halfguard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return Told(ended.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a study was run, once for all tests."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "job.py").write_text(JOBS.read_text())
    (folder / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    told = halfguard(folder, "validate", "spec.yaml", "--workers", 1)
    assert told.code == 1, told.err
    (folder / "told.txt").write_text(told.out)
    return folder


def test_it_says_and_keeps_what_it_found(study: Path) -> None:
    told = (study / "told.txt").read_text()
    assert told.splitlines()[0] == "small study: FAIL"
    assert "fp16-mixed guarded" in told
    folder = study / "runs/small-study"
    names = {"study.json", "verdict.json", "report.html", "report.md", "junit.xml"}
    assert names <= {path.name for path in folder.iterdir()}
    assert len(list((folder / "runs").iterdir())) == 14  # twelve runs and two speeds
    bare, guarded = Verdict.from_json((folder / "verdict.json").read_bytes()).comparisons
    assert bare.word is Word.FAIL  # it skipped every step
    assert guarded.word is Word.PASS  # it repeated every step
    kept = Study.from_json((folder / "study.json").read_bytes())
    assert {run.skipped for run in kept.runs if run.candidate == "fp16-mixed"} == {100}
    assert {run.retried for run in kept.runs if run.candidate == "fp16-mixed guarded"} == {100}


def test_a_second_call_runs_nothing_and_says_the_same(study: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in study.glob("runs/small-study/runs/*")}
    told = halfguard(study, "validate", "--json", "spec.yaml")
    assert told.code == 1
    assert json.loads(told.out)["kind"] == "verdict"
    assert Verdict.from_json(told.out).word is Word.FAIL
    after = {path: path.stat().st_mtime_ns for path in study.glob("runs/small-study/runs/*")}
    assert before == after


def test_a_sign_off_is_void_when_something_changes(study: Path) -> None:
    folder = study / "runs/small-study"
    told = halfguard(study, "validate", "approve", folder, "--by", "Ada Lovelace")
    assert told.code == 0, told.err
    assert told.out.startswith("Signed by Ada Lovelace")
    assert standing(folder).valid
    (folder / "runs/extra.json").write_text("{}")
    assert not standing(folder).valid
    (folder / "runs/extra.json").unlink()


def test_an_interrupted_study_says_how_to_go_on(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "save", interrupted)
    told = halfguard(study, "validate", "spec.yaml")
    assert told.code == 130
    assert "the same command goes on" in told.err


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("scipy", ["spec.yaml"]),
        ("torch", ["spec.yaml"]),
        ("scipy", ["approve", ".", "--by", "Ada"]),
    ],
)
def test_what_is_not_installed_is_answered_with_the_pip_command(
    tmp_path: Path, missing: str, arguments: list[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    program = (
        f"import sys; sys.modules[{missing!r}] = None; "
        f"sys.argv = ['halfguard', 'validate', *{arguments!r}]; "
        "from halfguard.cli import main; main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.splitlines()[-1] == "Run: pip install 'halfguard[validate]'"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.yaml"], "gone.yaml"),
        (["spec.yaml", "--executor", "slurm"], "slurm"),
        (["bad.yaml"], "thresholds.pas"),
        (["approve", ".", "--by", "Ada"], "verdict.json"),
    ],
)
def test_a_mistake_ends_with_2_and_no_traceback(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC))
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(SPEC | {"thresholds": {"pas": 1}}))
    told = halfguard(tmp_path, "validate", *arguments)
    assert told.code == 2
    assert said in told.err
    assert "Traceback" not in told.err
