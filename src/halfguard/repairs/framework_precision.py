"""Change the precision that Lightning, Accelerate or transformers is asked for."""

from __future__ import annotations

import ast

from halfguard.repairs.keywords import set_keyword
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import SourceFile, called_name


@Repair
def framework_precision(file: SourceFile, line: int, value: str) -> None:  # noqa: ARG001
    """Train in another 16-bit format, wherever the file asks for FP16."""
    for call in file.calls:
        first = call.args[0] if call.args else None
        plugin = called_name(call) == "MixedPrecision" and isinstance(first, ast.Constant)
        if plugin and first is not None and file.source(first).strip("'\"") == "16-mixed":
            devices = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "device")]
            given = ", ".join([f'"{value}-mixed"', *map(file.source, devices)])
            file.replace(call, f"{file.source(call.func)}({given})")  # which has no scaler
            continue
        for keyword in call.keywords:
            constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg in ("precision", "mixed_precision") and constant in ("fp16", "16-mixed"):
                name = str(constant).replace("fp16", value).replace("16-", f"{value}-")
                file.replace(keyword.value, f'"{name}"')
            elif keyword.arg == "fp16" and constant is True:
                set_keyword(file, call, value, "True", instead_of="fp16")
