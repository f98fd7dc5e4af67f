"""A file could not be checked.

## What it does
Reports a file that cannot be decoded or parsed, or that is nested too deeply to be read.

## Why is this bad?
Nothing else in the file was looked at. Files that hold no word that any rule looks for are not parsed, so
this is no substitute for a syntax check.

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

from halfguard.lint.match import Match
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG001",
    name="unreadable",
    cure="Correct the file, or exclude it in [tool.halfguard.lint].",
    words=(),
    severity="error",
)


def check(module: Model) -> Iterator[Match]:  # noqa: ARG001
    """Nothing: the engine reports this itself, where reading fails."""
    yield from ()
