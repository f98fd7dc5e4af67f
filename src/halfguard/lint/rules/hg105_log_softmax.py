"""`log(softmax(x))` is -inf where `log_softmax` is finite.

## What it does
Finds the logarithm of a softmax, with or without an added eps.

## Why is this bad?
A probability below 2.98e-8 is 0 in float16, its logarithm is -inf, and the gradient is NaN. `log_softmax`
does not compute the probability.

## Example
```py
import torch

def loss(logits, target):
    return torch.nn.functional.nll_loss(torch.log(torch.softmax(logits, dim=-1)), target)
```

## Use instead
```py
import torch

def loss(logits, target):
    return torch.nn.functional.cross_entropy(logits, target)
```

## Fix safety
Safe without an eps: the same function, computed more accurately. Unsafe with an eps, because the eps limited
the result.

## References
pytorch#43556.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import make_fix, replace
from halfguard.lint.expressions import called_name, receiver
from halfguard.lint.match import Fix, Match, Span, match_at
from halfguard.lint.numeric_checks import find_logarithms, functional_prefix, imports_for
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import Meta

META = Meta(
    code="HG105",
    name="log-softmax",
    cure="Use torch.nn.functional.log_softmax(x, dim).",
    contains=("softmax",),
    also_contains=("log(",),
    severity="error",
    fix="safe",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find logarithms of softmaxes."""
    for call, inner, has_eps in find_logarithms(file):
        if isinstance(inner, ast.Call) and called_name(inner) == "softmax":
            fix = _fix(file, call, inner, has_eps=has_eps)
            message = "log(softmax(x)) can be -inf in float16; log_softmax(x) is finite."
            yield match_at(call, message, fix)


def _fix(file: PythonFile, call: ast.Call, softmax: ast.Call, *, has_eps: bool) -> Fix | None:
    """Replace ``softmax`` by ``log_softmax`` and remove the logarithm around it."""
    full_name = file.full_name(softmax.func)
    prefix = functional_prefix(file)
    if full_name.startswith(("torch.softmax", "torch.nn.functional.softmax")):
        if not softmax.args:
            return None
        start = Span.before(softmax.args[0])
        text = f"{prefix}.log_softmax({_text_between(file, start, softmax)}"
    else:
        owner = receiver(softmax)
        if owner is None or full_name.startswith(("jax", "scipy", "numpy", "self.")):
            return None
        rest = _text_between(file, Span.after(owner), softmax)
        text = file.text(owner) + rest.replace(".softmax", ".log_softmax", 1)
        prefix = ""
    edit = replace(file, call, text)
    return make_fix("unsafe" if has_eps else "safe", edit, imports=imports_for(prefix))


def _text_between(file: PythonFile, start: Span, node: ast.expr) -> str:
    end = Span.after(node)
    return file.source.text_at(Span(start.line, start.column, end.line, end.column))
