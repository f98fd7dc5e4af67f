"""The files in the folder of a study: study, verdict and sign-off as records, and the reports made from them.

A sign-off is a name beside the digest of the study. It becomes void when the study has another digest: a run
was added, repeated or repaired. Anybody can forge the file: it is not a signature.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from halfguard.errors import RecordError, UsageError
from halfguard.records import write_atomically
from halfguard.records.study import Approval, Study, Verdict
from halfguard.report.blocks import Page
from halfguard.report.html import to_html
from halfguard.report.markdown import to_markdown
from halfguard.report.study import study_page
from halfguard.validation.lost_digits import read_lost_digits

_VERDICT, _APPROVAL = "verdict.json", "approval.json"


def read_study(folder: Path) -> Study:
    """Read ``study.json``."""
    try:
        return Study.from_json((folder / "study.json").read_bytes())
    except OSError as error:
        raise UsageError(f"The study in {folder} cannot be read: {error}.") from error


def read_verdict(folder: Path) -> Verdict:
    """Read ``verdict.json``."""
    path = folder / _VERDICT
    try:
        return Verdict.from_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{folder} contains no verdict: {path.name} cannot be read ({error}).",
            cure="Run: halfguard validate SPEC.yaml",
        ) from error
    except RecordError as error:
        raise RecordError(f"{path}: {error.message}", cure=error.cure) from error


def page_of_study(folder: Path, study: Study, verdict: Verdict) -> Page:
    """Return the page of a study with the sign-off in its folder."""
    path = folder / _APPROVAL
    approval = Approval.from_json(path.read_bytes()) if path.is_file() else None
    return study_page(study, verdict, approval, read_lost_digits(folder, verdict))


def write_reports(folder: Path, study: Study, verdict: Verdict) -> Page:
    """Write verdict and reports of a study; return their page."""
    write_atomically(folder / _VERDICT, verdict.to_json() + "\n")
    page = page_of_study(folder, study, verdict)
    write_atomically(folder / "report.html", to_html(page))
    write_atomically(folder / "report.md", to_markdown(page))
    return page


def approve(folder: str | os.PathLike[str], by: str) -> Approval:
    """Sign off the study in ``folder``, and write its reports again so that they show the name."""
    from halfguard.validation.judgement.verdict import judge  # noqa: PLC0415 - only this needs scipy

    root, name = Path(folder), " ".join(by.split())
    if not name or not name.isprintable():
        raise UsageError(
            f"A sign-off needs a name; {by!r} is not a name.",
            cure="For example: --by 'Ada Lovelace'",
        )
    verdict, study = read_verdict(root), read_study(root)
    if judge(study) != verdict:
        raise UsageError(
            f"The verdict in {root} does not belong to the study in the same folder.",
            cure="Run halfguard validate again, and read the new report before you sign it.",
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    approval = Approval(by=name, at=now, word=verdict.word, evidence=verdict.evidence)
    write_atomically(root / _APPROVAL, approval.to_json() + "\n")
    write_reports(root, study, verdict)
    return approval
