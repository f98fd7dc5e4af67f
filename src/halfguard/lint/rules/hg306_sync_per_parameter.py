"""The host waits for the device once per parameter.

## What it does
Finds loops over parameters that read a value from the device: `.item()`, or an `if` on `isnan`, `isinf` or
`isfinite`.

## Why is this bad?
Each read blocks the host until the device has finished its work. With hundreds of parameters in every step,
the check costs more than the step. The scaler already does this check, in one fused pass on the device. It
costs time and not accuracy, so the rule is in preview.

## Example
```py
import torch

def has_overflow(model):
    for p in model.parameters():
        if p.grad is not None and torch.isnan(p.grad).any():
            return True
    return False
```

## Use instead
```py
import torch

def has_overflow(model):
    norms = torch._foreach_norm([p.grad for p in model.parameters() if p.grad is not None])
    return not torch.stack(norms).isfinite().all()
```

## References
`torch.amp.GradScaler.unscale_` makes this check for all gradients at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.conditions import is_schedule_check
from halfguard.lint.expressions import called_name, name_of
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG306",
    name="sync-per-parameter",
    cure="Reduce over all parameters on the device and read one value.",
    contains=("param",),
    needs_half=True,
    also_contains=("isnan", "isinf", "isfinite", ".item("),
    pattern=r"\.grad\b",
    preview=True,
)
_CHECKS = ("isnan", "isinf", "isfinite")
_PARAMETERS = {"parameters", "named_parameters"}
_RARE = re.compile(r"debug|verbose|log_|print|dump|test|isnan|isfinite|isinf|is_nan", re.IGNORECASE)


def check(file: PythonFile) -> Iterator[Match]:
    """Find reads inside loops over parameters that use gradients."""
    if file.is_beside_the_model:
        return
    reads = [*file.calls("item")]
    reads += [c for c in file.calls(*_CHECKS) if _controls_branch(file, c)]
    seen: set[ast.AST] = set()
    for call in reads:
        loop = _parameter_loop(file, call)
        if loop is None or loop in seen or ".grad" not in ast.unparse(loop):
            continue
        if not _is_rare(file, loop):
            seen.add(loop)  # one report for a loop, however many values it reads
            yield match_at(call, "This waits for the device once per parameter.")


def _parameter_loop(file: PythonFile, node: ast.AST) -> ast.AST | None:
    """Return the loop or comprehension over parameters around a node."""
    for parent in file.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(parent, ast.For) and _are_parameters(file, parent.iter):
            return parent
        if isinstance(parent, ast.GeneratorExp | ast.ListComp) and _are_parameters(
            file, parent.generators[0].iter
        ):
            return parent
    return None


def _are_parameters(file: PythonFile, node: ast.expr) -> bool:
    """Return whether an expression is a list of parameters, also behind a variable."""
    value = file.assigned_value(node)
    if isinstance(value, ast.Call):
        inner = value.args[0] if called_name(value) in {"list", "filter"} and value.args else value
        inner = value.args[-1] if called_name(value) == "filter" else inner
        return isinstance(inner, ast.Call) and called_name(inner) in _PARAMETERS
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return _are_parameters(file, value.generators[0].iter)
    return name_of(node) in {"parameters", "params"} and value is node


def _is_rare(file: PythonFile, loop: ast.AST) -> bool:
    """Return whether a loop runs only now and then, or only to report an error."""
    for parent in file.ancestors(loop):
        if isinstance(parent, ast.If) and (
            is_schedule_check(parent.test) or _RARE.search(ast.unparse(parent.test))
        ):
            return True
        if isinstance(parent, ast.FunctionDef) and _RARE.search(parent.name):
            return True
    return False


def _controls_branch(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the host branches on the result."""
    child: ast.AST = call
    for parent in file.ancestors(call):
        if isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert):
            return parent.test is child
        if isinstance(parent, ast.GeneratorExp | ast.ListComp) and parent.elt is child:
            return True  # any(isnan(p.grad).any() for p in ...)
        if isinstance(parent, ast.stmt):
            return False
        child = parent
    return False
