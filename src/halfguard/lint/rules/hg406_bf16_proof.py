"""`is_bf16_supported()` is used as proof of BF16 hardware.

## What it does
Finds `torch.cuda.is_bf16_supported()` without `including_emulation=False` where it chooses BF16: in a
conditional expression, an `if` or a `return`. A call under `not` is correct and is not reported: it asks
whether BF16 is unavailable even with emulation. Nor is a project reported that uses flash attention, because
that needs such a GPU anyway.

## Why is this bad?
It counts emulation by default. On a T4 or a TITAN RTX it returns True, and the run is then several times
slower than FP16, or fails in a kernel without BF16 support.

## Example
```py
import torch

dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
```

## Use instead
```py
import torch

native = torch.cuda.is_bf16_supported(including_emulation=False)
dtype = torch.bfloat16 if native else torch.float16
```

## Fix safety
Unsafe: the argument needs torch 2.5, and the choice of dtype may change, as intended.

## References
pytorch#148322. `halfguard doctor` shows it for every GPU.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import has_keyword, name_of
from halfguard.lint.match import Edit, Fix, Match, Meta, Span, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG406",
    name="bf16-proof",
    cure="Pass including_emulation=False.",
    contains=("is_bf16_supported",),
    fix="unsafe",
)


def _is_negated(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the call is under ``not``, where it is right to count emulation."""
    for parent in file.ancestors(call):
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            return True
        if isinstance(parent, ast.stmt):
            return False
    return False


def _chooses(file: PythonFile, call: ast.Call) -> bool:
    """Return whether BF16 is used because of the answer, and it is not only printed or logged."""
    for parent in file.ancestors(call):
        if isinstance(parent, ast.IfExp):
            return "bf" in ast.unparse(parent.body).lower()
        if isinstance(parent, ast.If):
            return any(
                isinstance(s, ast.Assign | ast.Return) and "bf" in ast.unparse(s).lower()
                for s in parent.body
            )
        if isinstance(parent, ast.Assign):
            return any(re.search("bf|dtype", name_of(t), re.I) for t in parent.targets)
        if isinstance(parent, ast.stmt):
            return isinstance(parent, ast.Return)
    return False


def check(file: PythonFile) -> Iterator[Match]:
    """Find calls that count emulation."""
    if file.project.needs_ampere:
        return
    for call in file.calls("is_bf16_supported"):
        if not file.full_name(call.func).startswith("torch.cuda") or _is_negated(file, call):
            continue
        if not _chooses(file, call):
            continue
        if not call.args and not has_keyword(call, "including_emulation"):
            line, column = call.end_lineno or 0, (call.end_col_offset or 0) - 1
            edit = Edit(Span(line, column, line, column), "including_emulation=False")
            message = "This counts emulation: it returns True on GPUs without BF16."
            yield match_at(call, message, Fix("unsafe", (edit,)))
