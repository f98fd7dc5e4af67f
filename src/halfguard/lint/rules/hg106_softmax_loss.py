"""A loss that expects logits or log-probabilities is given probabilities.

## What it does
Finds `cross_entropy` or `nll_loss` applied to the output of `softmax`.

## Why is this bad?
`cross_entropy` takes logits and applies softmax itself. With softmax applied twice, the loss over C classes
cannot reach 0, and its gradients are so much smaller that they become zero in float16. `nll_loss` takes
log-probabilities: given probabilities, it only negates them.

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

from halfguard.lint.expressions import argument, called_name, name_of, receiver
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG106",
    name="softmax-loss",
    cure="Give logits to cross_entropy, or log_softmax(logits) to nll_loss.",
    contains=("softmax",),
    also_contains=("nll_loss(", "cross_entropy(", "CrossEntropyLoss(", "NLLLoss("),
    pattern=r"softmax\((?<!log_softmax\()",
    severity="error",
)
_LOSSES = {
    "cross_entropy": "logits", "CrossEntropyLoss": "logits",
    "nll_loss": "log-probabilities", "NLLLoss": "log-probabilities",
}  # fmt: skip


def check(file: PythonFile) -> Iterator[Match]:
    """Find softmax outputs that are passed to one of these losses."""
    for name in ("cross_entropy", "nll_loss"):
        for call in file.calls(name):
            if file.full_name(call.func).startswith("torch.nn.functional."):
                yield from _match(file, call, _LOSSES[name])
    for call, name in _criterion_calls(file):
        yield from _match(file, call, _LOSSES[name])


def _criterion_calls(file: PythonFile) -> Iterator[tuple[ast.Call, str]]:
    """Yield calls of variables that are always the same one of these losses, and the loss."""
    for variable, assigned in file.assignments.items():
        losses = {called_name(a.value) if isinstance(a.value, ast.Call) else "" for a in assigned}
        if len(losses) == 1 and (name := next(iter(losses))) in _LOSSES:
            for call in file.calls_of(variable):
                yield call, name


def _match(file: PythonFile, call: ast.Call, expected: str) -> Iterator[Match]:
    given = file.assigned_value(argument(call, 0, "input"))
    if not isinstance(given, ast.Call) or called_name(given) != "softmax":
        return
    if name_of(receiver(given)).startswith("self"):
        return
    loss = called_name(call) or "The loss"
    yield match_at(call, f"{loss} expects {expected}, but gets the output of softmax.")
