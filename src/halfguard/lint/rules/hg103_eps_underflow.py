"""An eps that is zero in half protects nothing.

## What it does
Finds constants of at most 2.98e-8 that are added before `log`, `sqrt`, `rsqrt` or a division, where the
tensor may be half. Lower bounds of `clamp` are HG113.

## Why is this bad?
The smallest positive half is about 6e-8, and what is at most half of that rounds to zero: `1e-8` does not
exist. `torch.log(x + 1e-8)` is -inf at 0 all the same, and `x / (y + 1e-8)` is 0/0.

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

from halfguard.lint.conditions import text_of
from halfguard.lint.halves import SMALL, is_model_value, is_tensor, may_be_half, vanishes
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG103",
    name="eps-underflow",
    cure="Compute in float32 (x.float()), or take eps from torch.finfo(x.dtype).",
    words=SMALL,
)
_TRAINING = re.compile(
    r"loss|prob|logit|score|softmax|sigmoid|entropy|attn|attention|kl_|div", re.I
)
_ROOTS = ("log", "log2", "log10", "sqrt", "rsqrt", "reciprocal")


def check(module: Model) -> Iterator[Match]:
    """Find additions that vanish."""
    for call in module.calls(*_ROOTS):
        owner = receiver(call)
        if owner is not None and module.dotted(call.func).startswith("torch."):
            inner = argument(call, 0, "input")
        else:
            inner = owner if isinstance(owner, ast.BinOp) and is_tensor(module, owner) else None
        yield from _added(module, inner, certain=True)
    for node in module.nodes(ast.BinOp):
        if isinstance(node.op, ast.Div):
            yield from _added(module, node.right, certain=False)


def _added(module: Model, node: ast.AST | None, *, certain: bool) -> Iterator[Match]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return
    for eps, rest in ((node.right, node.left), (node.left, node.right)):
        if not vanishes(module.constant(eps)) or not may_be_half(module, rest):
            continue
        if (certain and _is_about_models(module, node)) or is_model_value(module, rest):
            yield match_at(eps, f"{module.text(eps)} is 0 in half: it protects nothing here.")


def _is_about_models(module: Model, node: ast.AST) -> bool:
    """Whether this is training code: features of audio or images are computed in float32 anyway."""
    if module.uses_half or module.roles.is_torch_module(node):
        return True
    function = module.function_of(node)
    return bool(_TRAINING.search(f"{function.name if function else ''} {text_of(node)}"))
