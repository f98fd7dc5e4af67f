"""Scalers, optimizers and their steps, as a repair of a training loop has to know them.

A call counts only if its owner is known as a scaler or an optimizer: by its name, by what it was made of, or
by other calls of it in the file. ``env.step(action)`` is neither.
"""

from __future__ import annotations

import ast

from halfguard.repairs.source_file import Place, SourceFile, all_calls, called_name, own_nodes

CLIPPINGS = ("clip_grad_norm_", "clip_grad_value_")
_HARMLESS = ("zero_grad", "no_grad", "enable_grad", "set_grad_enabled", "requires_grad_")


def steps_around(file: SourceFile, line: int) -> list[ast.Call]:
    """Return the calls ``.step(...)`` of the function around a line: those of scalers, if there are any."""
    scope = file.function_at(line) or file.tree
    found = [c for c in own_nodes(scope) if isinstance(c, ast.Call) and called_name(c) == "step"]
    by_scaler = [c for c in found if c.args and is_scaler(file, file.owner_of(c))]
    plain = [c for c in found if not c.args and is_optimizer(file, file.owner_of(c))]
    return sorted(by_scaler or plain, key=lambda call: call.lineno)


def scaler_at(place: Place | None) -> str:
    """Return the scaler that steps or unscales an optimizer on a line; empty if there is none."""
    file = None if place is None else SourceFile.read(place[0])
    if file is None or place is None:
        return ""
    calls = (c for c in file.calls_of(place[1], "step", "unscale_") if c.args)
    return next((file.owner_of(call) for call in calls), "")


def is_scaler(file: SourceFile, owner: str) -> bool:
    """Return whether an expression is known as a gradient scaler."""
    named = "scaler" in owner.rsplit(".", maxsplit=1)[-1].lower()
    return named or file.has_call(owner, "scale", "unscale_") or _is_made_by(file, owner, "Scaler")


def is_optimizer(file: SourceFile, owner: str) -> bool:
    """Return whether an expression is known as an optimizer; a schedule is none."""
    name = owner.rsplit(".", maxsplit=1)[-1].lower()
    if not owner or "sched" in name or is_scaler(file, owner):
        return False
    return "opt" in name or file.has_call(owner, "zero_grad") or _is_made_by(file, owner, "optim")


def stepped_optimizer(file: SourceFile, call: ast.Call) -> str:
    """Return the optimizer that a call steps; empty if it is no such call, or if it has a closure."""
    owner, given = file.owner_of(call), call.args[0] if len(call.args) == 1 else None
    if called_name(call) != "step" or call.keywords:
        return ""
    if isinstance(given, ast.Name | ast.Attribute) and is_scaler(file, owner):
        return file.source(given)
    return owner if not call.args and is_optimizer(file, owner) else ""


def are_free_after(file: SourceFile, stepping: ast.stmt, optimizer: str) -> bool:
    """Return whether nothing reads gradients after a step, and its loop has no zeroing of another rhythm."""
    nodes = list(own_nodes(file.function_at(stepping.lineno) or file.tree))
    read = (n for n in nodes if getattr(n, "lineno", 0) > (stepping.end_lineno or 0))
    if any(names_gradients(node) for node in read):
        return False
    loops = [one for one in nodes if isinstance(one, ast.For | ast.AsyncFor | ast.While)]
    around = [one for one in loops if one.lineno <= stepping.lineno <= (one.end_lineno or 0)]
    inner = max(around, key=lambda one: one.lineno, default=None)
    calls = () if inner is None else all_calls(inner)
    return not any(file.source(call.func) == f"{optimizer}.zero_grad" for call in calls)


def names_gradients(node: ast.AST) -> bool:
    """Return whether a node is a gradient, or a call that is named after one."""
    if isinstance(node, ast.Attribute):
        return node.attr == "grad"
    name = called_name(node) if isinstance(node, ast.Call) else ""
    return ("clip" in name or "grad" in name) and name not in _HARMLESS


def scaler_steps(file: SourceFile, scaler: str, scope: ast.AST) -> list[ast.Expr]:
    """Return the statements ``scaler.step(optimizer)`` of a function or a file, by line."""
    found = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and file.source(node.value.func) == f"{scaler}.step"
        and node.value.args
    ]
    return sorted(found, key=lambda node: node.lineno)


def _is_made_by(file: SourceFile, owner: str, word: str) -> bool:
    """Return whether a name is assigned a call with a word in its name, such as ``torch.optim.SGD``."""
    values = (one.value for one in file.assignments(owner))
    return any(isinstance(one, ast.Call) and word in file.source(one.func) for one in values)
