"""Switch ``detect_anomaly`` off, as an argument or as a call, wherever the file has it."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name


@Repair
def anomaly_off(file: SourceFile, line: int) -> None:  # noqa: ARG001
    """Switch anomaly detection off."""
    for call in file.calls:
        given = [k for k in call.keywords if k.arg == "detect_anomaly"]
        given = [k for k in given if isinstance(k.value, ast.Constant) and k.value.value is True]
        if given:
            file.replace(given[0].value, "False")
        elif called_name(call) == "set_detect_anomaly" and call.args:
            file.replace(call.args[0], "False")
        elif called_name(call) == "detect_anomaly" and not call.args and not call.keywords:
            file.replace(call, f"{file.source(call.func)}(check_nan=False)")
        else:
            continue
        file.changed.append(given[0].value.lineno if given else call.lineno)
