"""`is_bf16_supported()` is taken as proof of BF16 hardware.

## What it does
Finds `torch.cuda.is_bf16_supported()` without `including_emulation=False`, except under a `not`: that BF16 is
not even emulated is a question that it answers.

## Why is this bad?
It counts emulation by default. On a T4 or a TITAN RTX it says yes, and the run is then several times slower
than FP16, or fails in a kernel that has no BF16.

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
Unsafe: the argument needs torch 2.5, and the choice of dtype may change, which is the point of it.

## References
pytorch#148322. `halfguard doctor` answers for every card.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Edit, Fix, Match, Span, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import has_keyword
from halfguard.lint.rule import Meta

META = Meta(
    code="HG406",
    name="bf16-proof",
    cure="Pass including_emulation=False.",
    words=("is_bf16_supported",),
    fix="unsafe",
)


def _refuses(module: Model, call: ast.Call) -> bool:
    """Whether the question is if BF16 is impossible: there, emulation rightly counts."""
    for parent in module.ancestors(call):
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            return True
        if isinstance(parent, ast.stmt):
            return False
    return False


def check(module: Model) -> Iterator[Match]:
    """Find the question without its condition."""
    for call in module.calls("is_bf16_supported"):
        if not module.dotted(call.func).startswith("torch.cuda"):
            continue
        if _refuses(module, call):
            continue
        if not call.args and not has_keyword(call, "including_emulation"):
            line, column = call.end_lineno or 0, (call.end_col_offset or 0) - 1
            edit = Edit(Span(line, column, line, column), "including_emulation=False")
            message = "This counts emulation: it says yes on cards without BF16."
            yield match_at(call, message, Fix("unsafe", (edit,)))
