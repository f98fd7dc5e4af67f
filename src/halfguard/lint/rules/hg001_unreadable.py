"""A file could not be checked.

## What it does
Reports a file that cannot be decoded or parsed, or that is nested too deeply.

## Why is this bad?
No other rule has checked the file. Files without any text that a rule looks for are not parsed, so this rule
does not replace a syntax check. Before Python 3.12, a file with an f-string that only newer versions read is
skipped without a report, as are templates: run halfguard with the Python that the file is written for.

## Example
```py
import torch
scaler = torch.amp.GradScaler("cuda"
```

## Use instead
```py
import torch
scaler = torch.amp.GradScaler("cuda")
```
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG001",
    name="unreadable",
    cure="Correct the file, run halfguard with the Python that it is written for, or exclude it.",
    contains=(),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:  # noqa: ARG001
    """Yield nothing: the engine reports this rule when it cannot read a file."""
    yield from ()
