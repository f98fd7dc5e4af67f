"""An incident of a script that names no ENTRY: the answer that was kept with it, and what its tensors show.

``halfguard why --incidents`` writes its answer beside the bad step: the tracked operation, the trials and the
cure. Without the code of the script the step cannot be run again, but the operation that made the bad number
can, from its kept inputs, and the batch and the weights can be read.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from halfguard.errors import RecordError
from halfguard.incident import Incident
from halfguard.records.script_answer import ScriptAnswer
from halfguard.replaying.kept_operation import describe_contents, run_kept_operation
from halfguard.tracing.origins import can_check, measure_range

ANSWER_FILE = "answer.json"
_MAX_BYTES = 16 * 2**20
_MOST = 20  # tensors that are listed


def read_kept_answer(incident: Incident) -> ScriptAnswer | None:
    """Return the answer of an incident without an ENTRY, with notes on its tensors; None if there is none."""
    path = incident.folder / ANSWER_FILE
    if incident.record.entry or not _is_small_file(path):
        return None
    answer = ScriptAnswer.from_json(path.read_bytes().decode("utf-8", "replace"))
    notes = (
        *describe_contents(incident.folder, sorted(incident.names)),
        *_describe(incident, "batch.", "the batch"),
        *_describe(
            incident,
            "model.",
            f"the weights {'before' if incident.record.exact else 'after'} the step",
        ),
    )
    runs = run_kept_operation(incident.folder)
    return answer.model_copy(update={"notes": (*answer.notes, *notes), "runs": runs})


def _is_small_file(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode):
        return False
    if found.st_size > _MAX_BYTES:
        raise RecordError(f"{path} has {found.st_size} bytes; {_MAX_BYTES} is the limit.")
    return True


def _describe(incident: Incident, prefix: str, what: str) -> Iterator[str]:
    """Yield the ranges of the tensors that are not finite, and of the one with the largest number."""
    ranges = [
        measure_range(name, tensor)
        for name, tensor in sorted(incident.tensors(prefix).items())
        if can_check(tensor)
    ]
    if not ranges:
        return
    bad = [one for one in ranges if one.nan or one.posinf or one.neginf]
    largest = max(ranges, key=lambda one: max(abs(one.low), abs(one.high)))
    state = (
        f"{len(bad)} of {len(ranges)} tensors are not finite" if bad else "all tensors are finite"
    )
    yield f"In {what} {state}; the largest numbers: {largest}."
    yield from (f"In {what}: {one}." for one in bad[:_MOST])
