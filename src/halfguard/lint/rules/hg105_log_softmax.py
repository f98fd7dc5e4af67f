"""`log(softmax(x))` is -inf where `log_softmax` is finite.

## What it does
Finds the logarithm of a softmax, with or without an eps between the two.

## Why is this bad?
A probability below 2.98e-8 is 0 in half, its logarithm is -inf, and the gradient is NaN. `log_softmax`
never forms the probability.

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
Safe without an eps: the same function, computed better. Unsafe with one, since the eps bounded the result.

## References
pytorch#43556.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import replace
from halfguard.lint.halves import functional, logarithms, needs
from halfguard.lint.match import Fix, Match, Span, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import last_name, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG105",
    name="log-softmax",
    cure="Use torch.nn.functional.log_softmax(x, dim).",
    words=("softmax",),
    also=("log(",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find logarithms of softmaxes."""
    for call, inner, has_eps in logarithms(module):
        if isinstance(inner, ast.Call) and last_name(inner) == "softmax":
            fix = _fix(module, call, inner, has_eps=has_eps)
            yield match_at(
                call, "log(softmax(x)) is -inf in half where log_softmax is finite.", fix
            )


def _fix(module: Model, call: ast.Call, softmax: ast.Call, *, has_eps: bool) -> Fix | None:
    """Rename the softmax and drop the logarithm around it."""
    dotted = module.dotted(softmax.func)
    prefix = functional(module)
    if dotted.startswith(("torch.softmax", "torch.nn.functional.softmax")):
        first = softmax.args[0] if softmax.args else None
        if first is None:
            return None
        inside = Span(first.lineno, first.col_offset, softmax.end_lineno or 0,
                      softmax.end_col_offset or 0)  # fmt: skip
        text = f"{prefix}.log_softmax({module.source.segment(inside)}"
    else:
        owner = receiver(softmax)
        if owner is None or dotted.startswith(("jax", "scipy", "numpy", "self.")):
            return None
        rest = module.source.segment(
            Span(
                owner.end_lineno or 0,
                owner.end_col_offset or 0,
                softmax.end_lineno or 0,
                softmax.end_col_offset or 0,
            )
        )
        text = module.text(owner) + rest.replace(".softmax", ".log_softmax", 1)
        prefix = ""
    edit = replace(module, call, text)
    return Fix("unsafe" if has_eps else "safe", (edit,), needs(prefix)) if edit else None
