"""A check for NaN misses infinity.

## What it does
Finds `if torch.isnan(loss)` and `if torch.isnan(output).any()` without `isinf` or `isfinite` in the same
test, in a file about 16-bit training.

## Why is this bad?
An overflow in float16 first gives inf, and NaN only when two infinities meet. A check for NaN alone is too
late.

## Example
```py
import torch

def check(loss):
    with torch.autocast("cuda", dtype=torch.float16):
        if torch.isnan(loss):
            raise ValueError("loss is NaN")
```

## Use instead
```py
import torch

def check(loss):
    with torch.autocast("cuda", dtype=torch.float16):
        if not torch.isfinite(loss):
            raise ValueError("loss is not finite")
```

## Fix safety
Unsafe: the new check also acts on infinity.

## References
pytorch#40497.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import called_name, name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    code="HG310",
    name="isnan-alone",
    cure="Use torch.isfinite instead.",
    contains=("isnan",),
    fix="unsafe",
    preview=True,
)
_CHECKED = re.compile(r"loss|output|logit|pred")


def check(file: PythonFile) -> Iterator[Match]:
    """Find tests for NaN alone."""
    if not file.mentions_fp16:
        return
    for node in file.nodes(ast.If):
        test, any_of = node.test, ""
        inner = (
            receiver(test) if isinstance(test, ast.Call) and called_name(test) == "any" else None
        )
        if isinstance(inner, ast.Call):  # torch.isnan(loss).any()
            test, any_of = inner, ".all()"
        if not isinstance(test, ast.Call) or called_name(test) != "isnan":
            continue
        value = file.tensor_of(test)
        if value is None or not _CHECKED.search(name_of(value).lower()):
            continue
        edit = replace(file, node.test, f"not torch.isfinite({file.text(value)}){any_of}")
        fix = make_fix("unsafe", edit, imports=("torch",))
        yield match_at(node.test, "An overflow gives inf first: this check finds only NaN.", fix)
