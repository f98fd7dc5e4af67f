"""A constant beyond the range of half is written into a tensor that may be half.

## What it does
Finds `masked_fill`, `fill_`, `full`, `full_like` and `new_full` with a constant such as `-1e9`.

## Why is this bad?
Half ends at 65504. Torch refuses the constant with "value cannot be converted to type c10::Half without
overflow", but only once the tensor really is half: the code works until mixed precision is switched on.

## Example
```py
import torch

def attend(scores, mask):
    scores = scores.masked_fill(mask == 0, -1e9)
    return torch.softmax(scores, dim=-1)
```

## Use instead
```py
import torch

def attend(scores, mask):
    scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1)
```

## Fix safety
Safe: the smallest number of the tensor's own format masks as well as -1e9 does. It is offered where the
tensor is a plain name, so that nothing is evaluated twice.

## References
Qwen#32, pytorch#6292.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.edits import is_simple, replace
from halfguard.lint.halves import BIG, does_not_fit, may_be_half
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, last_name, receiver
from halfguard.lint.precision import Precision
from halfguard.lint.rule import Meta

META = Meta(
    code="HG101",
    name="mask-constant",
    cure="Take the constant from the tensor's own dtype: torch.finfo(x.dtype).min.",
    words=("masked_fill", "fill_(", "full(", "full_like("),
    also=BIG,
    severity="error",
    fix="safe",
)
_INTEGERS = re.compile(
    r"(^|_)(ids?|idx|ind(ex|ices)|labels?|pos(itions?)?|len(gths?)?|tokens?)(_|$)"
)


def check(module: Model) -> Iterator[Match]:
    """Find constants in calls that write them into a tensor."""
    for call in module.calls("masked_fill", "masked_fill_", "fill_"):
        found = _filled(module, call)
        if found and may_be_half(module, found[0]) and not _is_integer(found[0]):
            yield from _match(module, found[0], found[1])
    for call in module.calls("full", "full_like", "new_full"):
        yield from _created(module, call)


def _filled(module: Model, call: ast.Call) -> tuple[ast.expr, ast.expr] | None:
    """The tensor and the value of a filling call."""
    owner, shift = receiver(call), 0
    if owner is not None and module.dotted(owner) == "torch":
        owner, shift = argument(call, 0, "input"), 1
    value = argument(call, shift + (last_name(call) != "fill_"), "value")
    return (owner, value) if owner is not None and value is not None else None


def _created(module: Model, call: ast.Call) -> Iterator[Match]:
    value = argument(call, 1, "fill_value")
    dtype = argument(call, -1, "dtype")
    like = {"full_like": argument(call, 0, "input"), "new_full": receiver(call)}
    source = like.get(last_name(call))
    if dtype is not None:
        # A dtype that is not spelled out is that of the model; one that is, is known.
        spelled = module.dotted(dtype).startswith("torch.")
        if module.dtype(dtype) is Precision.HALF or not (
            spelled or isinstance(dtype, ast.Constant)
        ):
            yield from _match(module, None, value)
    elif source is not None and may_be_half(module, source) and not _is_integer(source):
        yield from _match(module, source, value)


def _match(module: Model, tensor: ast.expr | None, value: ast.expr | None) -> Iterator[Match]:
    number = module.constant(value)
    if value is None or number is None or not does_not_fit(number):
        return
    fix = None
    if tensor is not None and is_simple(tensor):
        text = f"torch.finfo({module.text(tensor)}.dtype).{'min' if number < 0 else 'max'}"
        edit = replace(module, value, text)
        fix = Fix("safe", (edit,), ("torch",)) if edit else None
    yield match_at(value, f"{module.text(value)} does not fit into half, which ends at 65504.", fix)


def _is_integer(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return bool(_INTEGERS.search(name))
