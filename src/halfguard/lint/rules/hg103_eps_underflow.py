"""An eps that is zero in float16 has no effect.

## What it does
Finds constants of at most 2.98e-8 that are added before `log`, `sqrt`, `rsqrt` or a division, if the tensor
may be float16. HG113 finds lower bounds of `clamp`.

## Why is this bad?
The smallest positive float16 value is about 6e-8. A constant of at most half of that rounds to zero, so
`1e-8` becomes 0. `torch.log(x + 1e-8)` is still -inf at 0, and `x / (y + 1e-8)` is 0/0. In unseen public
code one of five findings was in code that really runs in half, so the rule is in preview.

## Example
```py
import torch

def entropy(p):
    return -(p * torch.log(p + 1e-8)).sum(-1)
```

## Use instead
```py
import torch

def entropy(p):
    p = p.float()
    return -(p * torch.log(p + 1e-8)).sum(-1)
```

## References
See `halfguard explain 1e-8`. huggingface/diffusers#13316, pytorch#66707.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, receiver
from halfguard.lint.match import Match, match_at
from halfguard.lint.numeric_checks import (
    SMALL_CONSTANTS,
    assigned_sum,
    is_model_value,
    may_be_half,
    underflows_half,
)
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG103",
    name="eps-underflow",
    cure="Compute in float32 (x.float()), or take eps from torch.finfo(x.dtype).",
    contains=("e-8", "e-9", "e-0", "e-1", "e-2", "e-3"),
    pattern=SMALL_CONSTANTS,
    needs_half=True,
    preview=True,
)
_TRAINING = re.compile(
    r"loss|prob|logit|score|softmax|sigmoid|entropy|attn|attention|kl_|div", re.I
)
_FUNCTIONS = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")


def check(file: PythonFile) -> Iterator[Match]:
    """Find added constants that underflow."""
    for call in file.calls(*_FUNCTIONS):
        inner = argument(call, 0, "input") if file.is_torch_call(call) else receiver(call)
        # Only tensors have these methods, and they take no arguments.
        if inner is not None and (file.is_torch_call(call) or not call.args):
            yield from _check_sum(file, assigned_sum(file, inner), certain=True)
    for node in file.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield from _check_sum(file, assigned_sum(file, node.right), certain=False)


def _check_sum(file: PythonFile, node: ast.AST | None, *, certain: bool) -> Iterator[Match]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return
    for eps, rest in ((node.right, node.left), (node.left, node.right)):
        if not underflows_half(file.constant(eps)) or not may_be_half(file, rest):
            continue
        if (certain and _is_model_code(file, node)) or is_model_value(file, rest):
            yield match_at(eps, f"{file.text(eps)} is 0 in float16: it has no effect here.")


def _is_model_code(file: PythonFile, node: ast.AST) -> bool:
    """Return whether this is model code; features of audio or images are computed in float32 anyway."""
    if file.mentions_fp16 or file.roles.is_in_nn_module(node):
        return True
    function = file.function_of(node)
    return bool(_TRAINING.search(f"{function.name if function else ''} {ast.unparse(node)}"))
