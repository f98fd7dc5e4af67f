"""A trainable tensor of an `nn.Module` is not a parameter.

## What it does
Finds `self.x = torch.rand(..., requires_grad=True)` and similar calls in an `nn.Module`.

## Why is this bad?
It is not in `parameters()`: the optimizer never updates it, `.to(device)` and `.half()` skip it, and it is
missing from the checkpoint. `torch.rand` is also a poor initialization: all values are positive.

## Example
```py
import torch

class Recommender(torch.nn.Module):
    def __init__(self, users, width):
        super().__init__()
        self.preference = torch.rand((users, width), requires_grad=True)
```

## Use instead
```py
import torch

class Recommender(torch.nn.Module):
    def __init__(self, users, width):
        super().__init__()
        self.preference = torch.nn.Parameter(torch.empty(users, width))
        torch.nn.init.xavier_normal_(self.preference)
```

## Fix safety
Unsafe: the parameter is added to the state dict, so older checkpoints do not contain it. The fix keeps the
values and wraps them.

## References
Seen in published graph recommenders, where it was mistaken for an effect of mixed precision.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, name_of
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    code="HG404",
    name="tensor-as-parameter",
    cure="Wrap it in torch.nn.Parameter and initialize it explicitly.",
    contains=("requires_grad=True",),
    pattern=r"self\.\w+\s*=\s*(?:torch|nn|init)\.",
    severity="error",
    fix="unsafe",
)
_FACTORIES = {"rand", "randn", "zeros", "ones", "empty", "full", "tensor", "randint", "eye"}


def check(file: PythonFile) -> Iterator[Match]:
    """Find attributes of an ``nn.Module`` that are tensors with a gradient."""
    for call in file.calls(*_FACTORIES):
        requires_grad = boolean(argument(call, -1, "requires_grad"))
        if not file.is_torch_call(call) or requires_grad is not True:
            continue
        target = _target(file, call)
        # A tensor that only makes torch.utils.checkpoint keep gradients is never trained.
        if "dummy" in target:
            continue
        if target.startswith("self.") and file.roles.is_in_nn_module(call):
            message = f"{target} is not a parameter: optimizers, checkpoints and casts skip it."
            yield match_at(call, message, _fix(file, call))


def _target(file: PythonFile, call: ast.Call) -> str:
    """Return the variable that gets the tensor, also through ``nn.init.xavier_(torch.rand(...))``."""
    node: ast.AST | None = file.parents.get(call)
    if isinstance(node, ast.Call) and "init" in file.full_name(node.func):
        node = file.parents.get(node)
    return name_of(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _fix(file: PythonFile, call: ast.Call) -> Fix | None:
    if not isinstance(file.parents.get(call), ast.Assign):
        return None
    kept = [file.text(a) for a in call.args]
    kept += [f"{k.arg}={file.text(k.value)}" for k in call.keywords if k.arg != "requires_grad"]
    text = f"torch.nn.Parameter({file.text(call.func)}({', '.join(kept)}))"
    return make_fix("unsafe", replace(file, call, text), imports=("torch",))
