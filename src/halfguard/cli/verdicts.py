"""The files of a verdict in a study's folder, and its sign-off: where the instrument and the pages meet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfguard.records.study import Study
    from halfguard.records.verdict import Approval, Standing, Verdict
    from halfguard.report.blocks import Page


def save_verdict(folder: Path, study: Study, verdict: Verdict) -> Page:
    """Write ``verdict.json``, ``report.html``, ``report.md`` and ``junit.xml``; returns the page."""
    from halfguard.records import write_whole  # noqa: PLC0415
    from halfguard.report.junit import to_junit  # noqa: PLC0415
    from halfguard.validation.approval import VERDICT_FILE, standing  # noqa: PLC0415

    write_whole(folder / VERDICT_FILE, verdict.to_json() + "\n")
    write_whole(folder / "junit.xml", to_junit(verdict))
    return _save_pages(folder, study, verdict, standing(folder))


def sign(folder: Path, by: str) -> Approval:
    """Sign off the study in ``folder``; its pages show who did, and are sealed with the rest."""
    from halfguard.errors import UsageError  # noqa: PLC0415
    from halfguard.records.study import Study  # noqa: PLC0415
    from halfguard.records.verdict import Standing  # noqa: PLC0415
    from halfguard.validation.approval import approve, read_verdict  # noqa: PLC0415
    from halfguard.validation.judgement.verdict import judge  # noqa: PLC0415

    verdict = read_verdict(folder)
    try:
        study = Study.from_json((folder / "study.json").read_bytes())
    except OSError as error:
        raise UsageError(f"The study in {folder} cannot be read: {error}.") from error
    if judge(study) != verdict:
        raise UsageError(
            f"The verdict in {folder} is not that of the study beside it.",
            cure="Run halfguard validate again, and read the new report before signing.",
        )

    def write_report(signed: Approval) -> None:
        _save_pages(folder, study, verdict, Standing(approval=signed))

    return approve(folder, by, write_report)


def _save_pages(folder: Path, study: Study, verdict: Verdict, standing: Standing) -> Page:
    from halfguard.records import write_whole  # noqa: PLC0415
    from halfguard.report import to_html, to_markdown  # noqa: PLC0415
    from halfguard.report.study import study_page  # noqa: PLC0415

    page = study_page(study, verdict, standing)
    write_whole(folder / "report.html", to_html(page))
    write_whole(folder / "report.md", to_markdown(page))
    return page
