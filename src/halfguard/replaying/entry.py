"""The code that an incident belongs to. It is run, so who names it matters.

An incident may come from a stranger, and nothing in its folder is ever executed. The ENTRY that it records
is taken as a hint to the reader's own code: a file that arrived together with the incident is refused, and
must be named by the reader.
"""

from __future__ import annotations

from pathlib import Path

from halfguard.errors import UsageError
from halfguard.incident import Incident
from halfguard.workload import Workload, load


def workload_of(entry: Workload | str | None, incident: Incident) -> Workload:
    """The workload that the caller named, or else the one that the incident does."""
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
            f"{incident.folder} names {recorded!r}, a file that lies with it; nothing that comes with an "
            "incident is run unasked.",
            cure=f"Look at that file first. {cure}",
        )
    return load(recorded)


def _came_with_it(entry: str, folder: Path) -> bool:
    """Whether the code lies in the incident, or in the run that it is part of."""
    place = entry.rpartition(":")[0]
    # A module's name leads to a file as well, and more ways than one lead into a folder.
    file = place if place.endswith(".py") else place.replace(".", "/")
    code, folder, here = Path(file).resolve(), folder.resolve(), Path.cwd().resolve()
    run = folder.parents[1] if folder.parent.name == "incidents" else folder
    homes = [folder] if here.is_relative_to(run) else [folder, run]
    return any(code.is_relative_to(home) for home in homes)
