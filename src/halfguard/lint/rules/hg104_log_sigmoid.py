"""`log(sigmoid(x))` is -inf for scores that `logsigmoid` handles.

## What it does
Finds the logarithm of a sigmoid, with or without an eps between the two.

## Why is this bad?
In half, sigmoid is 0 from about -17.4 down, so that the loss is infinite and its gradient NaN. An eps of
1e-8 changes nothing: it is 0 in half as well. `logsigmoid` is exact for every score.

## Example
```py
import torch

def bpr(positive, negative):
    return -torch.log(torch.sigmoid(positive - negative)).mean()
```

## Use instead
```py
import torch

def bpr(positive, negative):
    return -torch.nn.functional.logsigmoid(positive - negative).mean()
```

## Fix safety
Safe without an eps: the same function, computed better. Unsafe with one, because the eps had bounded the
loss from above, at 18.4 for 1e-8.

## References
`halfguard.ops.bpr_loss` is the pairwise loss as a whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.halves import functional, logarithms, needs
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, last_name, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG104",
    name="log-sigmoid",
    cure="Use torch.nn.functional.logsigmoid(x).",
    words=("sigmoid",),
    also=("log(",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find logarithms of sigmoids."""
    for call, inner, has_eps in logarithms(module):
        score = _sigmoid_of(module, inner)
        if score is not None:
            name = functional(module)
            edit = replace(module, call, f"{name}.logsigmoid({module.text(score)})")
            fix = Fix("unsafe" if has_eps else "safe", (edit,), needs(name)) if edit else None
            yield match_at(
                call, "log(sigmoid(x)) is -inf in half where logsigmoid(x) is exact.", fix
            )


def _sigmoid_of(module: Model, node: ast.AST | None) -> ast.expr | None:
    if not isinstance(node, ast.Call) or last_name(node) != "sigmoid":
        return None
    if module.dotted(node.func).startswith("torch."):
        return argument(node, 0, "input")
    return receiver(node) if not node.args else None
