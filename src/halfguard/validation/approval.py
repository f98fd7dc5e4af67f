"""A sign-off that is worth something: it names what was read, and is void as soon as any of it changes.

One idea: the name is written beside the digest of every file in the study's folder, the report among them.
A report that is to show the sign-off is therefore written first, and sealed with the rest. Nothing stops
somebody from forging the file; what it protects from is a study that went on, or was mended, after it was
signed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from halfguard.errors import RecordError, UsageError
from halfguard.records import write_whole
from halfguard.records.verdict import Approval, Standing, Verdict

APPROVAL_FILE = "approval.json"
VERDICT_FILE = "verdict.json"


def approve(
    folder: str | os.PathLike[str],
    by: str,
    write_report: Callable[[Approval], object] | None = None,
) -> Approval:
    """Sign the study in ``folder``; ``write_report`` is given the sign-off before the files are sealed."""
    root = Path(folder)
    name = " ".join(by.split())
    if not name or not name.isprintable():
        raise UsageError(
            f"A sign-off needs a name, not {by!r}.", cure="Give it as: --by 'Ada Lovelace'"
        )
    verdict = read_verdict(root)
    signed = Approval(
        by=name,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        word=verdict.word,
        evidence=verdict.evidence,
    )
    if write_report is not None:
        write_report(signed)
    sealed = signed.model_copy(update={"files": digests(root)})
    write_whole(root / APPROVAL_FILE, sealed.to_json() + "\n")
    return sealed


def standing(folder: str | os.PathLike[str]) -> Standing:
    """Whether the study in ``folder`` is signed, and which files have changed, come or gone since."""
    root = Path(folder)
    path = root / APPROVAL_FILE
    if not path.is_file():
        return Standing()
    approval = Approval.from_json(path.read_bytes())
    now = digests(root)
    changed = {
        name for name in now.keys() | approval.files if now.get(name) != approval.files.get(name)
    }
    return Standing(approval=approval, changed=tuple(sorted(changed)))


def read_verdict(folder: Path) -> Verdict:
    """The verdict that was written with the study."""
    path = folder / VERDICT_FILE
    try:
        return Verdict.from_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"{folder} holds no verdict that could be signed: {path.name} cannot be read ({error}).",
            cure="Run: halfguard validate SPEC.yaml",
        ) from error
    except RecordError as error:
        raise RecordError(f"{path}: {error.message}", cure=error.cure) from error


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folder`` but the sign-off itself and files that are being written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or str(name) == APPROVAL_FILE or path.name.startswith("."):
            continue
        with path.open("rb") as file:
            found[name.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
