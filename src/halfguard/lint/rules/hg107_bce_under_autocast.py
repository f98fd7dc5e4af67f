"""`BCELoss` runs under autocast.

## What it does
Finds `binary_cross_entropy` and instances of `nn.BCELoss` that are called inside an autocast region.

## Why is this bad?
On CUDA torch raises "unsafe to autocast". Where it does not raise, a half sigmoid has already rounded to 0
or 1, so that a confidently wrong sample gets a wrong loss and no gradient. The version on logits is
exact.

## Example
```py
import torch

def step(model, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.nn.functional.binary_cross_entropy(torch.sigmoid(model(x)), y)
```

## Use instead
```py
import torch

def step(model, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return torch.nn.functional.binary_cross_entropy_with_logits(model(x), y)
```

## Fix safety
Safe, and offered where the sigmoid stands in the call itself.

## References
YOLOX#336, lightning#13871.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key, last_name, receiver
from halfguard.lint.precision import Precision
from halfguard.lint.rule import Meta

META = Meta(
    code="HG107",
    name="bce-under-autocast",
    cure="Leave the sigmoid out and use binary_cross_entropy_with_logits or BCEWithLogitsLoss.",
    words=("binary_cross_entropy", "BCELoss"),
    also=("autocast",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find BCE in regions that are on."""
    for call in module.calls("binary_cross_entropy"):
        if _is_under_autocast(module, call):
            yield match_at(
                call, "binary_cross_entropy is unsafe under autocast.", _fix(module, call)
            )
    for variable, bindings in module.bindings.items():
        if any(isinstance(b.value, ast.Call) and last_name(b.value) == "BCELoss" for b in bindings):
            for call in module.calls(variable.rpartition(".")[2]):
                if key(call.func) == variable and _is_under_autocast(module, call):
                    yield match_at(call, f"{variable} is a BCELoss, unsafe under autocast.")


def _is_under_autocast(module: Model, call: ast.Call) -> bool:
    region = module.regions.around(call)
    if region is None or region.enabled is False:
        return False
    return not call.args or module.precision(call.args[0]) is not Precision.FULL


def _fix(module: Model, call: ast.Call) -> Fix | None:
    first = argument(call, 0, "input")
    if not isinstance(first, ast.Call) or last_name(first) != "sigmoid":
        return None
    inner = argument(first, 0, "input") if first.args else receiver(first)
    if inner is None or argument(call, 2, "weight") is not None:
        return None
    renamed = replace(module, call.func, f"{module.text(call.func)}_with_logits")
    unwrapped = replace(module, first, module.text(inner))
    return Fix("safe", (renamed, unwrapped)) if renamed and unwrapped else None
