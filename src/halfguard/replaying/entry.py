"""Find the code that an incident belongs to, or the answer that ``halfguard why`` kept with it.

The code is executed, so it must be the reader's own.

An incident may come from somebody else, and nothing in its folder is ever executed. The ENTRY that it records
is only a hint to the reader's own code. A file that arrived together with the incident is not executed,
unless the reader names it.
"""

from __future__ import annotations

import stat
from pathlib import Path

from halfguard.errors import RecordError, UsageError
from halfguard.incident import Incident
from halfguard.records.script_answer import ScriptAnswer
from halfguard.workload import Workload, load

ANSWER_FILE = "answer.json"
_MAX_BYTES = 16 * 2**20


def find_workload(entry: Workload | str | None, incident: Incident) -> Workload:
    """Return the workload that the caller named, or else the one that the incident names."""
    if isinstance(entry, Workload):
        return entry
    if entry:
        return load(entry)
    recorded = incident.record.entry
    cure = "Name the function that describes the job: halfguard replay INCIDENT --entry file.py:function."
    if not recorded:
        raise UsageError(
            f"{incident.folder} does not say which code it belongs to.",
            cure=f"{cure} Guard(..., entry=...) records it for next time.",
        )
    if _came_with_it(recorded, incident.folder):
        raise UsageError(
            f"{incident.folder} names {recorded!r}, a file that came with it; code that comes with an "
            "incident is not run unless you ask for it.",
            cure=f"Look at that file first. {cure}",
        )
    return load(recorded)


def read_kept_answer(incident: Incident) -> ScriptAnswer | None:
    """Return the answer that lies in an incident without an ENTRY; None if there is none."""
    path = incident.folder / ANSWER_FILE
    try:
        found = path.lstat()
    except OSError:
        return None
    if incident.record.entry or not stat.S_ISREG(found.st_mode):
        return None
    if found.st_size > _MAX_BYTES:
        raise RecordError(f"{path} has {found.st_size} bytes; {_MAX_BYTES} is the limit.")
    return ScriptAnswer.from_json(path.read_bytes().decode("utf-8", "replace"))


def _came_with_it(entry: str, folder: Path) -> bool:
    """Return whether the code is in the folder of the incident or of its run."""
    place = entry.rpartition(":")[0]
    # A module's name leads to a file as well, and a path may go through links.
    file = place if place.endswith(".py") else place.replace(".", "/")
    code, folder, here = Path(file).resolve(), folder.resolve(), Path.cwd().resolve()
    run = folder.parents[1] if folder.parent.name == "incidents" else folder
    homes = [folder] if here.is_relative_to(run) else [folder, run]
    return any(code.is_relative_to(home) for home in homes)
