"""The optimizer steps on gradients that are still scaled.

## What it does
Finds `optimizer.step()` in the same pass as a scaled backward pass.

## Why is this bad?
The step is 65,536 times too large, or a second one after `scaler.step`; and nothing stops it when
gradients are infinite. In one measured case a weight went from 1 to -6552.

## Example
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        optimizer.step()
        scaler.update()
```

## Use instead
```py
import torch

def train(model, optimizer, loader, loss_fn):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(loss_fn(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
```

## Fix safety
Safe: calls `scaler.step(optimizer)` instead, or takes the second step away where the scaler has already
stepped this optimizer.

## References
Applio#860, nerfacc#307.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfguard.lint.edits import remove, replace
from halfguard.lint.event import Event
from halfguard.lint.match import Edit, Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta
from halfguard.lint.steps import Step

META = Meta(
    code="HG205",
    name="raw-optimizer-step",
    cure="Call scaler.step(optimizer) and nothing else.",
    words=("caler",),
    severity="error",
    fix="safe",
)


def check(module: Model) -> Iterator[Match]:
    """Find raw steps after scaled backward passes."""
    for step in module.steps:
        for raw in step.of("optimizer_step"):
            scaled = step.before(raw, "scaled_backward")
            # The latest backward pass decides: in a GAN, one side may not be scaled at all.
            latest = step.before(raw, "scaled_backward", "backward")
            if not scaled or latest[0].kind != "scaled_backward" or _is_by_hand(step, raw):
                continue
            already = [s for s in step.of("scaler_step") if s.target == raw.subject
                       and not s.excludes(raw)]  # fmt: skip
            how = "once more, on top of scaler.step" if already else "on gradients that are scaled"
            fix = _fix(module, raw, scaled[0], already=bool(already))
            yield match_at(raw.node, f"{raw.subject}.step() runs {how}.", fix)


def _is_by_hand(step: Step, raw: Event) -> bool:
    """Whether the gradients were unscaled first, and the scaler does not step this optimizer."""
    return bool(step.before(raw, "unscale")) and not any(
        s.target == raw.subject for s in step.of("scaler_step")
    )


def _fix(module: Model, raw: Event, scaled: Event, *, already: bool) -> Fix | None:
    statement = module.statement_of(raw.node)
    if not isinstance(statement, ast.Expr) or not isinstance(raw.node, ast.Call):
        return None
    edit: Edit | None = None
    if already:
        edit = remove(module, statement)
    elif not raw.node.args and module.function_of(raw.node) is module.function_of(scaled.node):
        owner = module.text(raw.node.func).rpartition(".")[0]
        edit = replace(module, raw.node, f"{scaled.subject}.step({owner})")
    return Fix("safe", (edit,)) if edit else None
