"""A sign-off is valid for exactly the files that were read, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from halfguard.errors import RecordError, UsageError
from halfguard.records.verdict import VerdictLabel
from halfguard.validation.approval import APPROVAL_FILE, approve, check_sign_off
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.validate import write_reports
from tests.validation.studies import losing, study


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a finished study, as ``halfguard validate`` writes it."""
    made = study({"fp16-mixed": losing(0.0)})
    (tmp_path / "runs").mkdir()
    for run in made.runs:
        (tmp_path / "runs" / f"{run.candidate}-{run.seed}.json").write_text(run.to_json())
    (tmp_path / "study.json").write_text(made.to_json())
    write_reports(tmp_path, made, judge(made))
    return tmp_path


def test_an_unsigned_study_has_no_valid_sign_off(folder: Path) -> None:
    found = check_sign_off(folder)
    assert found.approval is None
    assert not found.valid
    assert "Not signed" in (folder / "report.html").read_text()


def test_a_sign_off_names_who_and_what_and_is_shown_in_the_report(folder: Path) -> None:
    signed = approve(folder, "  Ada   Lovelace ")
    assert (signed.by, signed.word) == ("Ada Lovelace", VerdictLabel.PASS)
    assert {"study.json", "verdict.json", "report.html", "runs/fp32-0.json"} <= set(signed.files)
    assert check_sign_off(folder).valid
    for page in ("report.html", "report.md"):
        assert "signed by Ada Lovelace" in (folder / page).read_text()


def test_judging_an_unchanged_study_again_leaves_the_sign_off_valid(folder: Path) -> None:
    approve(folder, "Ada Lovelace")
    made = study({"fp16-mixed": losing(0.0)})
    write_reports(folder, made, judge(made))
    assert check_sign_off(folder).valid


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "name", ["runs/fp16-mixed-2.json", "study.json", "verdict.json", "report.html"]
)
@pytest.mark.parametrize("how", [flip, remove])
def test_any_change_voids_it_and_is_named(
    folder: Path, name: str, how: Callable[[Path], None]
) -> None:
    approve(folder, "Ada Lovelace")
    how(folder / name)
    found = check_sign_off(folder)
    assert not found.valid
    assert found.changed == (name,)


def test_a_run_that_was_added_voids_it_and_the_new_report_says_so(folder: Path) -> None:
    approve(folder, "Ada Lovelace")
    (folder / "runs" / "fp16-mixed-5.json").write_text("{}")
    assert check_sign_off(folder).changed == ("runs/fp16-mixed-5.json",)
    made = study({"fp16-mixed": losing(0.0)})
    write_reports(folder, made, judge(made))
    page = (folder / "report.html").read_text()
    assert "VOID" in page
    assert "runs/fp16-mixed-5.json" in page


def test_a_verdict_of_another_study_cannot_be_signed(folder: Path) -> None:
    other = study({"fp16-mixed": losing(0.118)})
    (folder / "study.json").write_text(other.to_json())
    with pytest.raises(UsageError, match="does not belong to the study"):
        approve(folder, "Ada Lovelace")
    assert not (folder / APPROVAL_FILE).exists()


def test_signing_again_makes_it_valid_again(folder: Path) -> None:
    approve(folder, "Ada Lovelace")
    (folder / "notes.txt").write_text("read")
    assert not check_sign_off(folder).valid
    approve(folder, "Grace Hopper")
    assert check_sign_off(folder).valid


@pytest.mark.parametrize("name", ["", "  ", "a\x1b[31mb"])
def test_a_sign_off_needs_a_name(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="needs a name"):
        approve(folder, name)


def test_without_a_verdict_there_is_nothing_to_sign(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no verdict"):
        approve(tmp_path, "Ada")
    (tmp_path / "verdict.json").write_text("{}")
    with pytest.raises(RecordError, match=r"verdict\.json"):
        approve(tmp_path, "Ada")
