"""Probabilities are given to a loss that expects logits, or log-probabilities.

## What it does
Finds `cross_entropy` or `nll_loss` applied to the output of `softmax`.

## Why is this bad?
`cross_entropy` takes logits and applies softmax itself: applied twice, the loss over C classes cannot
reach 0 and its gradients are far smaller, which in half means that they vanish. `nll_loss` takes
log-probabilities: on probabilities it only subtracts them.

## Example
```py
import torch.nn.functional as F

def loss(logits, target):
    return F.cross_entropy(F.softmax(logits, dim=-1), target)
```

## Use instead
```py
import torch.nn.functional as F

def loss(logits, target):
    return F.cross_entropy(logits, target)
```

## References
pytorch documentation of `cross_entropy` and `nll_loss`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, key, last_name, receiver
from halfguard.lint.rule import Meta

META = Meta(
    code="HG106",
    name="softmax-loss",
    cure="Give logits to cross_entropy, or log_softmax(logits) to nll_loss.",
    words=("softmax",),
    also=("nll_loss", "cross_entropy", "CrossEntropyLoss", "NLLLoss"),
    severity="error",
)
_LOSSES = {
    "cross_entropy": "logits", "CrossEntropyLoss": "logits",
    "nll_loss": "log-probabilities", "NLLLoss": "log-probabilities",
}  # fmt: skip


def check(module: Model) -> Iterator[Match]:
    """Find losses of softmaxes."""
    for name in ("cross_entropy", "nll_loss"):
        for call in module.calls(name):
            if module.dotted(call.func).startswith("torch.nn.functional."):
                yield from _match(module, call, _LOSSES[name])
    for call, name in _instances(module):
        yield from _match(module, call, _LOSSES[name])


def _instances(module: Model) -> Iterator[tuple[ast.Call, str]]:
    """Calls of ``criterion`` where it was made as one of these losses, and nothing else."""
    for variable, bindings in module.bindings.items():
        made = {last_name(b.value) if isinstance(b.value, ast.Call) else "" for b in bindings}
        if len(made) == 1 and (name := next(iter(made))) in _LOSSES:
            for call in module.calls(variable.rpartition(".")[2]):
                if key(call.func) == variable:
                    yield call, name


def _match(module: Model, call: ast.Call, wanted: str) -> Iterator[Match]:
    given = argument(call, 0, "input")
    if isinstance(given, ast.Name):
        bound = module.latest(given)
        given = bound.value if bound and bound.value else given
    if not isinstance(given, ast.Call) or last_name(given) != "softmax":
        return
    owner = receiver(given)
    if owner is not None and key(owner).startswith("self"):
        return
    yield match_at(call, f"{last_name(call) or 'The loss'} expects {wanted}, and is given softmax.")
