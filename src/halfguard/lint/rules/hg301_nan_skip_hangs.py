"""One rank leaves a step that the others wait in.

## What it does
Finds `continue` or `return` on a loss that is not finite, before the backward pass, in a file that may run
on several ranks; and `return None` for the same reason in a Lightning `training_step`.

## Why is this bad?
The backward pass of DistributedDataParallel is a collective operation. A rank that skips it leaves all
others waiting until the time-out. Run backward as usual: infinities reach every rank through the
all-reduce, and the scaler skips everywhere together.

## Example
```py
import torch
import torch.distributed as dist

def train(model, optimizer, loader, loss_fn, scaler):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        if torch.isnan(loss):
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Use instead
```py
import torch
import torch.distributed as dist

def train(model, optimizer, loader, loss_fn, scaler):
    for x, y in loader:
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
```

## References
lightning#5243, lightning#19918.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.conditions import asks_about_loss
from halfguard.lint.match import Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG301",
    name="nan-skip-hangs",
    cure="Let backward run on every rank, or agree on the skip with an all-reduce first.",
    words=("isnan", "isinf", "isfinite"),
    severity="error",
)
_AGREED = ("all_reduce", "all_gather", "any_rank", "broadcast", "reduce_boolean")


def check(module: Model) -> Iterator[Match]:
    """Find skips that the ranks do not agree on."""
    if any(word in module.source.text for word in _AGREED):
        return
    if module.roles.may_be_distributed:
        for step in module.steps:
            for leave in step.of("continue", "return"):
                if step.before(leave, "backward", "scaled_backward") or not leave.tests:
                    continue
                if _is_branch(module, leave.node) and asks_about_loss(module, leave.tests[-1]):
                    yield _match(leave.node)
    for function in module.functions:
        if function.name == "training_step" and module.class_of(function) is not None:
            yield from _lightning(module, function)


def _lightning(module: Model, function: ast.AST) -> Iterator[Match]:
    for node in module.nodes(ast.Return):
        parent = module.parents.get(node)
        empty = node.value is None or (
            isinstance(node.value, ast.Constant) and node.value.value is None
        )
        branch = parent if isinstance(parent, ast.If) else None
        inside = empty and function in module.ancestors(node)
        if branch is not None and inside and asks_about_loss(module, branch.test):
            yield _match(node)


def _is_branch(module: Model, node: ast.AST) -> bool:
    return isinstance(module.parents.get(node), ast.If)


def _match(node: ast.Call | ast.stmt) -> Match:
    return match_at(node, "A rank that leaves here never reaches the backward pass: the rest hang.")
