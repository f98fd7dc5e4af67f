"""Repairs of what a loss and its gradients are multiplied by: scaled, unscaled, divided, once per step."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import CLIPPINGS, scaler_steps, steps_around
from halfguard.repairs.source_file import SourceFile, all_calls, assigned_target, called_name


@Repair
def scale_loss(file: SourceFile, line: int, scaler: str, *, instead: bool = False) -> None:
    """Scale a loss, or scale it by this scaler ``instead`` of another one."""
    for call in file.calls_of(line) if scaler else ():
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        if instead and function.attr == "scale":
            file.replace(function.value, scaler)
            return
        if not instead and function.attr == "backward":
            file.replace(function.value, f"{scaler}.scale({file.source(function.value)})")
            return


@Repair
def unscale_before_clipping(file: SourceFile, line: int) -> None:
    """Unscale before the first clipping of a step."""
    statement = file.statement_at(line)
    if statement is None:
        return
    prepare = next((c for c in file.calls if called_name(c) == "prepare"), None)
    clips = [c for c in file.calls_of(line) if called_name(c).startswith("clip_grad_")]
    if prepare is not None and file.owner_of(prepare) and clips:
        file.replace(clips[0].func, f"{file.owner_of(prepare)}.{called_name(clips[0])}")
        return
    for step in steps_around(file, statement.lineno):
        if step.args and step.lineno > statement.lineno:
            call = f"{file.owner_of(step)}.unscale_({file.source(step.args[0])})"
            later = (c for c in file.calls if line < c.lineno < step.lineno)
            is_later = any(file.source(one) == call for one in later)  # a second one would raise
            if not is_later and not _is_written(file, line, call):
                file.insert_before(statement, f"{' ' * statement.col_offset}{call}")
            return


def _is_written(file: SourceFile, line: int, call: str) -> bool:
    """Return whether the same call already follows the last backward pass before a line."""
    scope = file.function_at(line) or file.tree
    before = sorted((c for c in all_calls(scope) if c.lineno < line), key=lambda c: c.lineno)
    for one in reversed(before):
        if called_name(one) == "backward":
            return False
        if file.source(one) == call:
            return True
    return False


_UNSCALING = (*CLIPPINGS, "unscale_gradients")  # of Accelerate


@Repair
def unscale_once(file: SourceFile, line: int) -> None:
    """Unscale once per step."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Expr | ast.Assign):
        return
    calls = [c for c in all_calls(statement) if isinstance(c.func, ast.Attribute)]
    for call in calls:
        owner = file.owner_of(call)
        if called_name(call) in _UNSCALING and file.has_call(owner, "accumulate"):
            file.indent(statement, f"if {owner}.sync_gradients:")
            return
    unscale = next((c for c in calls if called_name(c) == "unscale_"), None)
    if unscale is None or not isinstance(statement, ast.Expr):
        return
    steps = scaler_steps(file, file.owner_of(unscale), file.function_at(line) or file.tree)
    step = next((one for one in steps if one.lineno > line), None)
    if step is None:
        return
    block = file.block_of(statement)
    if any(one is step for one in block):
        file.remove(statement)
        return
    at = next(index for index, one in enumerate(block) if one is statement)
    group: list[ast.stmt] = [statement]
    for one in block[at + 1 :]:  # the clipping that follows it
        if not any(called_name(call) in CLIPPINGS for call in all_calls(one)):
            break
        group.append(one)
    file.insert_before(step, "\n".join(file.moved(one, step.col_offset) for one in group))
    for one in _left_empty(file, block) if len(group) == len(block) else group:
        file.remove(one)
    _set_before_loop(file, line, group)


def _left_empty(file: SourceFile, block: list[ast.stmt]) -> list[ast.stmt]:
    """Return the condition around a whole block, which has no use without it; else the block."""
    around = (n for n in ast.walk(file.tree) if isinstance(n, ast.If) and block == n.body)
    return [one for one in around if not one.orelse] or block


def _set_before_loop(file: SourceFile, line: int, moved: list[ast.stmt]) -> None:
    """Give names a value before the loop, if they are read in iterations that do not assign them any more."""
    loop = file.loop_at(line)
    targets = {t.id for one in moved if isinstance(t := assigned_target(one), ast.Name)}
    after = max(one.end_lineno or one.lineno for one in moved)
    read = {
        node.id
        for node in ast.walk(loop or file.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > after
    }
    if loop is not None:
        for name in sorted(targets & read):
            file.insert_before(loop, f"{' ' * loop.col_offset}{name} = torch.zeros(())")


@Repair
def undivided_loss(file: SourceFile, line: int) -> None:
    """Pass a loss undivided to a framework that divides it."""
    found = file.sole_call(line, "backward")
    given = found[1].args[0] if found is not None and found[1].args else None
    if isinstance(given, ast.Name):
        value = file.assigned(given.id, line)
        is_own = isinstance(value, ast.BinOp) and file.source(value.left) == given.id
        given = value if is_own else None
    if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Div):
        file.replace(given, file.source(given.left))


@Repair
def unscale_penalty(file: SourceFile, line: int) -> None:
    """Unscale the gradients of a penalty."""
    statement, scales = file.statement_at(line), file.calls_of(line, "scale")
    if not isinstance(statement, ast.Assign) or not scales:
        return
    value, scaler = statement.value, file.owner_of(scales[0])
    if isinstance(value, ast.Subscript):
        file.append(value, f" / {scaler}.get_scale()")
    elif isinstance(statement.targets[0], ast.Tuple) and len(statement.targets[0].elts) == 1:
        file.replace(value, f"({file.source(value)}[0] / {scaler}.get_scale(),)")
    else:
        file.replace(value, f"[g / {scaler}.get_scale() for g in {file.source(value)}]")


@Repair
def loss_per_micro_batch(file: SourceFile, line: int) -> None:
    """Divide each loss by the number of micro-batches."""
    backward = [c for c in file.calls_of(line, "backward") if not c.args]
    loop = file.loop_at(line)
    if len(backward) != 1 or not isinstance(loop, ast.For):
        return
    count, function = loop.iter, backward[0].func
    steps = any(called_name(call) == "step" for call in all_calls(loop))
    if steps or not isinstance(count, ast.Call) or called_name(count) != "range":
        return
    if len(count.args) == 1 and isinstance(function, ast.Attribute):
        number = file.source(count.args[0])
        file.replace(function.value, f"({file.source(function.value)} / {number})")


@Repair
def load_if_not_empty(file: SourceFile, line: int) -> None:
    """Load a state only if it is not empty."""
    found = file.sole_call(line, "load_state_dict")
    state = found[1].args[0] if found is not None and len(found[1].args) == 1 else None
    if found is not None and isinstance(state, ast.Name | ast.Subscript | ast.Attribute):
        file.indent(found[0], f"if {file.source(state)}:")
