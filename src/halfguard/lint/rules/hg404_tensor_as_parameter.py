"""A trainable tensor on a module is not a parameter.

## What it does
Finds `self.x = torch.rand(..., requires_grad=True)` and its relatives in a `nn.Module`.

## Why is this bad?
It is not in `parameters()`: the optimizer never sees it, `.to(device)` and `.half()` pass it by, and it is
missing from the checkpoint. `torch.rand` is also a poor start: all values are positive.

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
Unsafe: the parameter appears in the state dict, so that older checkpoints lack it. The fix keeps the
values and wraps them.

## References
Seen in published graph recommenders, where it was taken for an effect of mixed precision.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean, key
from halfguard.lint.rule import Meta

META = Meta(
    code="HG404",
    name="tensor-as-parameter",
    cure="Wrap it in torch.nn.Parameter, and initialise it on purpose.",
    words=("requires_grad=True",),
    severity="error",
    fix="unsafe",
)
_MAKERS = {"rand", "randn", "zeros", "ones", "empty", "full", "tensor", "randint", "eye"}


def check(module: Model) -> Iterator[Match]:
    """Find tensors that want a gradient on a module."""
    for call in module.calls(*_MAKERS):
        if not module.dotted(call.func).startswith("torch."):
            continue
        if boolean(argument(call, -1, "requires_grad")) is not True:
            continue
        target = _target(module, call)
        if target.startswith("self.") and module.roles.is_torch_module(call):
            message = f"{target} is not a parameter: no optimizer, checkpoint or cast sees it."
            yield match_at(call, message, _fix(module, call))


def _target(module: Model, call: ast.Call) -> str:
    """Where the tensor goes, also through ``nn.init.xavier_(torch.rand(...))``."""
    node: ast.AST | None = module.parents.get(call)
    if isinstance(node, ast.Call) and "init" in module.dotted(node.func):
        node = module.parents.get(node)
    return key(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _fix(module: Model, call: ast.Call) -> Fix | None:
    if not isinstance(module.parents.get(call), ast.Assign):
        return None
    kept = [module.text(a) for a in call.args]
    kept += [f"{k.arg}={module.text(k.value)}" for k in call.keywords if k.arg != "requires_grad"]
    text = f"torch.nn.Parameter({module.text(call.func)}({', '.join(kept)}))"
    edit = replace(module, call, text)
    return Fix("unsafe", (edit,), ("torch",)) if edit else None
