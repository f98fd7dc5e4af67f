"""`BCELoss` runs under autocast.

## What it does
Finds `binary_cross_entropy` and instances of `nn.BCELoss` that are called inside an autocast region.

## Why is this bad?
On CUDA torch raises "unsafe to autocast". Where it does not raise, a float16 sigmoid has already rounded to 0
or 1, so a confidently wrong sample gets a wrong loss and no gradient. The version for logits is exact.

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
Safe. It is offered only if the sigmoid is in the call itself.

## References
YOLOX#336, lightning#13871.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.expressions import argument, called_name, receiver
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.numeric_checks import module_class
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile, make_fix, replace

META = Meta(
    code="HG107",
    name="bce-under-autocast",
    cure="Remove the sigmoid and use binary_cross_entropy_with_logits or BCEWithLogitsLoss.",
    contains=("binary_cross_entropy", "BCELoss"),
    also_contains=("autocast",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find binary cross-entropy inside autocast regions."""
    for call in file.calls("binary_cross_entropy"):
        if _is_under_autocast(file, call):
            yield match_at(call, "binary_cross_entropy is unsafe under autocast.", _fix(file, call))
    for variable in file.constructed("BCELoss"):
        for call in file.calls_of(variable):
            # Another function may use the same name for another loss.
            if module_class(file, call) == "BCELoss" and _is_under_autocast(file, call):
                yield match_at(call, f"{variable} is a BCELoss, which is unsafe under autocast.")


def _is_under_autocast(file: PythonFile, call: ast.Call) -> bool:
    region = file.autocast.around(call)
    if region is None or region.enabled is False:
        return False
    if file.is_inference(call):
        return False
    return not call.args or file.precision(call.args[0]) is not Precision.FULL


def _fix(file: PythonFile, call: ast.Call) -> Fix | None:
    first = argument(call, 0, "input")
    if not isinstance(first, ast.Call) or called_name(first) != "sigmoid":
        return None
    inner = argument(first, 0, "input") if first.args else receiver(first)
    if inner is None or argument(call, 2, "weight") is not None:
        return None
    renamed = replace(file, call.func, f"{file.text(call.func)}_with_logits")
    return make_fix("safe", renamed, replace(file, first, file.text(inner)))
