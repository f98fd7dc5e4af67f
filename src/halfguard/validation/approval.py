"""The sign-off of a study. It becomes void as soon as any file of the study changes.

The name of the reader is stored with the digest of every file in the study's folder, including the report.
The report shows the sign-off, so it is written before the digests are taken. Anybody can forge the file: it
is not a signature. It shows whether a study was continued or repaired after it was signed.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

from halfguard.errors import UsageError
from halfguard.records import write_atomically
from halfguard.records.verdict import Approval, SignOffStatus
from halfguard.validation.study_files import read_study, read_verdict, write_pages

APPROVAL_FILE = "approval.json"


def approve(folder: str | os.PathLike[str], by: str) -> Approval:
    """Sign off the study in ``folder``, and write its reports again so that they show the name."""
    from halfguard.validation.judgement.verdict import judge  # noqa: PLC0415 - only this needs scipy

    root = Path(folder)
    name = " ".join(by.split())
    if not name or not name.isprintable():
        raise UsageError(
            f"A sign-off needs a name, not {by!r}.", cure="Give it as: --by 'Ada Lovelace'"
        )
    verdict, study = read_verdict(root), read_study(root)
    if judge(study) != verdict:
        raise UsageError(
            f"The verdict in {root} does not belong to the study in the same folder.",
            cure="Run halfguard validate again, and read the new report before you sign it.",
        )
    approval = Approval(
        by=name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        word=verdict.word,
        evidence=verdict.evidence,
    )
    write_pages(root, study, verdict, SignOffStatus(approval=approval))
    approval = approval.model_copy(update={"files": _digests(root)})
    write_atomically(root / APPROVAL_FILE, approval.to_json() + "\n")
    return approval


def check_sign_off(folder: str | os.PathLike[str]) -> SignOffStatus:
    """Return the sign-off of a study, if there is one, and the files that changed since."""
    root = Path(folder)
    path = root / APPROVAL_FILE
    if not path.is_file():
        return SignOffStatus()
    approval = Approval.from_json(path.read_bytes())
    now = _digests(root)
    changed = {
        name for name in now.keys() | approval.files if now.get(name) != approval.files.get(name)
    }
    return SignOffStatus(approval=approval, changed=tuple(sorted(changed)))


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below ``folder``, except the sign-off and temporary files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or str(name) == APPROVAL_FILE or path.name.startswith("."):
            continue
        with path.open("rb") as file:
            found[name.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
