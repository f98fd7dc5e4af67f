"""Change an argument of the FP16 region: its dtype, or whether it is on."""

from __future__ import annotations

import ast

from halfguard.repairs.keywords import has_only_device, set_keyword
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import Place, SourceFile, called_name, calls_at


@Repair
def autocast_region(file: SourceFile, line: int, name: str, value: str) -> None:
    """Set an argument of the only autocast of a line."""
    regions = _regions(file, line)
    if len(regions) == 1 and has_only_device(regions[0]):
        set_keyword(file, regions[0], name, value)


def is_region(place: Place | None) -> bool:
    """Return whether a line has an autocast."""
    file = None if place is None else SourceFile.read(place[0])
    return file is not None and place is not None and bool(_regions(file, place[1]))


def _regions(file: SourceFile, line: int) -> list[ast.Call]:
    return [call for call in calls_at(file, line) if called_name(call) == "autocast"]
