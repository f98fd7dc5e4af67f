"""The files in the folder of a study: study and verdict as records, and the reports made from them."""

from __future__ import annotations

from pathlib import Path

from halfguard.errors import RecordError, UsageError
from halfguard.records import write_atomically
from halfguard.records.study import Study
from halfguard.records.verdict import SignOffStatus, Verdict
from halfguard.report import study_page, to_html, to_junit, to_markdown
from halfguard.report.blocks import Page
from halfguard.report.html import without_origin

VERDICT_FILE = "verdict.json"


def read_study(folder: Path) -> Study:
    """Read ``study.json``."""
    try:
        return Study.from_json((folder / "study.json").read_bytes())
    except OSError as error:
        raise UsageError(f"The study in {folder} cannot be read: {error}.") from error


def read_verdict(folder: Path) -> Verdict:
    """Read ``verdict.json``."""
    path = folder / VERDICT_FILE
    try:
        return Verdict.from_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{folder} holds no verdict: {path.name} cannot be read ({error}).",
            cure="Run: halfguard validate SPEC.yaml",
        ) from error
    except RecordError as error:
        raise RecordError(f"{path}: {error.message}", cure=error.cure) from error


def write_verdict(folder: Path, verdict: Verdict) -> None:
    """Write ``verdict.json`` and ``junit.xml``."""
    write_atomically(folder / VERDICT_FILE, verdict.to_json() + "\n")
    write_atomically(folder / "junit.xml", to_junit(verdict))


def _write_if_changed(path: Path, html: str) -> None:
    """Write a page unless the file shows the same already: a later date alone would void a sign-off."""
    known = path.read_text("utf-8", "replace") if path.is_file() else ""
    if without_origin(known) != without_origin(html):
        write_atomically(path, html)


def write_pages(folder: Path, study: Study, verdict: Verdict, sign_off: SignOffStatus) -> Page:
    """Write ``report.html`` and ``report.md``; return their page."""
    page = study_page(study, verdict, sign_off)
    _write_if_changed(folder / "report.html", to_html(page))
    write_atomically(folder / "report.md", to_markdown(page))
    return page
