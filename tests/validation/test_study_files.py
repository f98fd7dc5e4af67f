"""A sign-off is valid for exactly the study that was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfguard.errors import RecordError, UsageError
from halfguard.records.study import VerdictLabel
from halfguard.validation.judgement.verdict import judge
from halfguard.validation.study_files import approve, write_reports
from tests.validation.studies import losing, study


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a finished study, as ``halfguard validate`` writes it."""
    write(tmp_path, 0.0)
    return tmp_path


def write(folder: Path, loss: float) -> str:
    """Write a study and its reports; return the report."""
    made = study({"fp16-mixed": losing(loss)})
    (folder / "study.json").write_text(made.to_json())
    write_reports(folder, made, judge(made))
    return (folder / "report.html").read_text()


def test_a_sign_off_names_who_and_what_and_is_shown_in_the_report(folder: Path) -> None:
    assert "Not signed" in (folder / "report.html").read_text()
    signed = approve(folder, "  Ada   Lovelace ")
    assert (signed.by, signed.word) == ("Ada Lovelace", VerdictLabel.PASS)
    assert signed.evidence == study({"fp16-mixed": losing(0.0)}).digest()
    for page in ("report.html", "report.md"):
        assert "signed by Ada Lovelace" in (folder / page).read_text()


def test_it_is_void_for_every_other_study_and_valid_again_when_that_is_signed(folder: Path) -> None:
    approve(folder, "Ada Lovelace")
    assert "VOID" not in write(folder, 0.0)  # the same study, judged again
    assert "VOID" in write(folder, 0.0001)  # another one with the same verdict
    approve(folder, "Grace Hopper")
    page = (folder / "report.html").read_text()
    assert "signed by Grace Hopper" in page
    assert "VOID" not in page


def test_a_verdict_of_another_study_cannot_be_signed(folder: Path) -> None:
    (folder / "study.json").write_text(study({"fp16-mixed": losing(0.118)}).to_json())
    with pytest.raises(UsageError, match="does not belong to the study"):
        approve(folder, "Ada Lovelace")
    assert not (folder / "approval.json").exists()


def test_a_sign_off_needs_a_name(folder: Path) -> None:
    for name in ("", "  ", "a\x1b[31mb"):
        with pytest.raises(UsageError, match="needs a name"):
            approve(folder, name)


def test_without_a_verdict_there_is_nothing_to_sign(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no verdict"):
        approve(tmp_path, "Ada")
    (tmp_path / "verdict.json").write_text("{}")
    with pytest.raises(RecordError, match=r"verdict\.json"):
        approve(tmp_path, "Ada")
