"""`log(sigmoid(x))` is -inf for inputs that `logsigmoid` handles.

## What it does
Finds the logarithm of a sigmoid, with or without an added eps.

## Why is this bad?
In float16, sigmoid is 0 for inputs below about -17.4, so the loss is infinite and its gradient is NaN. An eps
of 1e-8 does not help: it is also 0 in float16. `logsigmoid` is exact for every input.

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
Safe without an eps: the same function, computed more accurately. Unsafe with an eps, because the eps limited
the loss, to 18.4 for 1e-8.

## References
`halfguard.ops.bpr_loss` computes the whole pairwise loss.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import make_fix, replace
from halfguard.lint.expressions import called_name
from halfguard.lint.match import Match, match_at
from halfguard.lint.numeric_checks import find_logarithms, functional_prefix, imports_for
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG104",
    name="log-sigmoid",
    cure="Use torch.nn.functional.logsigmoid(x).",
    contains=("sigmoid",),
    also_contains=("log(",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find logarithms of sigmoids."""
    for call, inner, has_eps in find_logarithms(file):
        score = _sigmoid_of(file, inner)
        if score is not None:
            name = functional_prefix(file)
            edit = replace(file, call, f"{name}.logsigmoid({file.text(score)})")
            fix = make_fix("unsafe" if has_eps else "safe", edit, imports=imports_for(name))
            message = "log(sigmoid(x)) can be -inf in float16; logsigmoid(x) is exact."
            yield match_at(call, message, fix)


def _sigmoid_of(file: PythonFile, node: ast.AST | None) -> ast.expr | None:
    if not isinstance(node, ast.Call) or called_name(node) != "sigmoid":
        return None
    return file.tensor_of(node) if file.is_torch_call(node) or not node.args else None
