"""Make a scaler for the device on which autocast runs."""

from __future__ import annotations

import ast

from halfguard.repairs.keywords import set_keyword
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name, calls_at


@Repair
def scaler_device(file: SourceFile, line: int, device: str) -> None:
    """Give a scaler its device."""
    scalers = [c for c in calls_at(file, line) if called_name(c) == "GradScaler"]
    if len(scalers) != 1:
        return
    call = scalers[0]
    if call.args and isinstance(call.args[0], ast.Constant):
        file.replace(call.args[0], f'"{device}"')
    elif not call.args:
        set_keyword(file, call, "device", f'"{device}"')
