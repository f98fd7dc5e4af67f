"""Anomaly detection is on in a run that scales its loss.

## What it does
Finds `detect_anomaly()` and `set_detect_anomaly(True)` in a file that uses a gradient scaler.

## Why is this bad?
Anomaly mode raises at the first NaN in a backward pass. With dynamic loss scaling that is an ordinary event:
the scaler would skip the step and go on. It also makes the run two to three times slower.

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
Unsafe: somebody may be in the middle of a hunt. Takes the statement away.

## References
Its cost was measured at 2.6 times the step of a small GPT-2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import remove
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean
from halfguard.lint.rule import Meta

META = Meta(
    code="HG307",
    name="anomaly-with-scaler",
    cure="Turn it off; capture the bad step with halfguard.Guard and replay it instead.",
    words=("detect_anomaly",),
    fix="unsafe",
)


def check(module: Model) -> Iterator[Match]:
    """Find anomaly mode beside a scaler."""
    if not module.roles.constructed_scalers:
        return
    for call in module.calls("detect_anomaly", "set_detect_anomaly"):
        if not module.dotted(call.func).startswith("torch."):
            continue
        first = argument(call, 0, "mode")
        setting = module.dotted(call.func).endswith("set_detect_anomaly")
        if setting and boolean(first) is not True:
            continue
        statement = module.statement_of(call)
        edit = remove(module, statement) if isinstance(statement, ast.Expr) else None
        fix = Fix("unsafe", (edit,)) if edit else None
        yield match_at(call, "This raises on overflow that the scaler would skip.", fix)
