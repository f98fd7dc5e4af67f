"""Give a scaler an initial scale."""

from __future__ import annotations

from halfguard.repairs.keywords import has_only_device, set_keyword
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_at


@Repair
def initial_scale(file: SourceFile, line: int, scale: float) -> None:
    """Begin with a loss scale."""
    scalers = [call for call in calls_at(file, line) if called_name(call) == "GradScaler"]
    if len(scalers) == 1 and has_only_device(scalers[0]):
        set_keyword(file, scalers[0], "init_scale", f"{scale!r}")
