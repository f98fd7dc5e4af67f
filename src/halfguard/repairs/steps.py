"""Repairs of when a scaler, an optimizer or a schedule is made and stepped, and gradients are zeroed."""

from __future__ import annotations

import ast

from halfguard.repairs.repair import Repair
from halfguard.repairs.scalers import are_free_after, scaler_steps, stepped_optimizer, steps_around
from halfguard.repairs.settings import set_keyword
from halfguard.repairs.source_file import (
    Place,
    SourceFile,
    all_calls,
    assigned_target,
    called_name,
    loops_around,
    own_nodes,
)


@Repair
def leave_out_step(file: SourceFile, line: int) -> None:
    """Leave the statement out: the scaler has stepped before."""
    statement = file.statement_at(line)
    if isinstance(statement, ast.Expr):
        file.remove(statement)


@Repair
def step_by_scaler(file: SourceFile, line: int, scaling: Place | None) -> None:
    """Step by the scaler whose scaling is known; both lines must be in one function."""
    found = file.sole_call(line, "step")
    optimizer = "" if found is None else file.owner_of(found[1])
    if found is None or not optimizer or scaling is None or scaling[0] != file.path:
        return
    scales = [c for c in file.calls_at(scaling[1]) if called_name(c) == "scale"]
    scaler, function = file.owner_of(scales[0]) if scales else "", file.function_at(line)
    if not scaler or file.function_at(scaling[1]) is not function:
        return
    margin, scope = " " * found[0].col_offset, function or file.tree
    updates = (c for c in all_calls(scope) if file.source(c.func) == f"{scaler}.update")
    update = "" if any(call.lineno > line for call in updates) else f"\n{margin}{scaler}.update()"
    file.replace(found[0], f"{scaler}.step({optimizer}){update}")


@Repair
def step_with_gradients(file: SourceFile, line: int) -> None:
    """Put the step of a line under a condition."""
    found = file.sole_call(line)
    name = stepped_optimizer(file, found[1]) if found is not None and found[1].args else ""
    if found is not None and name:
        has = f'any(p.grad is not None for g in {name}.param_groups for p in g["params"])'
        file.indent(found[0], f"if {has}:")


@Repair
def scaler_once(file: SourceFile, line: int) -> None:
    """Make a scaler before the loop around it; before the function, if that is called in every step."""
    making = file.statement_at(line)
    target = None if making is None else assigned_target(making)
    if not isinstance(making, ast.Assign) or not isinstance(target, ast.Name):
        return
    function = file.function_at(line)
    loop = next(iter(loops_around(function or file.tree, line)), None)
    first = loop or next(one for one in file.tree.body if line <= (one.end_lineno or 0))
    nodes = list(ast.walk(loop or function or file.tree))
    inside = {n.arg for n in nodes if isinstance(n, ast.arg)}
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    used = {n.id for n in ast.walk(making.value) if isinstance(n, ast.Name)}
    is_free = not used & (inside | set(stored)) and stored.count(target.id) == 1
    has_loop = any(isinstance(node, ast.For | ast.While) for node in nodes)
    is_called = function and (not has_loop or _is_called_in_loop(file, function.name))
    if is_free and (loop or (is_called and not getattr(first, "decorator_list", ()))):
        gap = "" if loop else "\n\n"
        file.insert_before(first, f"{file.moved(making, first.col_offset)}{gap}")
        file.remove(making)
    elif isinstance(function, ast.FunctionDef) and not loop and stored.count(target.id) == 1:
        _make_in_caller(file, making, function, target.id)


def _make_in_caller(
    file: SourceFile, making: ast.Assign, function: ast.FunctionDef, name: str
) -> None:
    """Make what a function makes before the loop of its only caller, and pass it as an argument."""
    calls = [call for call in file.calls if file.source(call.func) == function.name]
    scope = (file.function_at(calls[0].lineno) or file.tree) if calls else file.tree
    loop = next(iter(loops_around(scope, calls[0].lineno)), None) if len(calls) == 1 else None
    given = function.args
    plain = not (given.posonlyargs or given.vararg or given.kwonlyargs or given.kwarg)
    if loop is None or not given.args or not plain:
        return
    passed = dict(zip((one.arg for one in given.args), calls[0].args, strict=False))
    passed |= {str(k.arg): k.value for k in calls[0].keywords}
    parameters = {one.arg for one in given.args}
    used = {n.id for n in ast.walk(making.value) if isinstance(n, ast.Name)}
    renamed = [
        one for one in used & parameters if one not in passed or file.source(passed[one]) != one
    ]
    nodes = (*ast.walk(function), *ast.walk(loop))
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    taken = {n.id for n in own_nodes(scope) if isinstance(n, ast.Name)}
    if renamed or used & stored or name in taken:
        return
    file.insert_before(loop, file.moved(making, loop.col_offset))
    file.remove(making)
    last, mark = (given.defaults[-1], "*, ") if given.defaults else (given.args[-1], "")
    file.append(last, f", {mark}{name}")
    set_keyword(file, calls[0], name, name)


def _is_called_in_loop(file: SourceFile, name: str) -> bool:
    calls = (call for call in file.calls if called_name(call) == name)
    scopes = ((call, file.function_at(call.lineno) or file.tree) for call in calls)
    return any(loops_around(scope, call.lineno) for call, scope in scopes)


@Repair
def update_after_step(file: SourceFile, line: int) -> None:
    """Update the scaler after its step."""
    found = file.sole_call(line, "update")
    if found is None:
        return
    statement, call = found
    steps = scaler_steps(file, file.owner_of(call), file.function_at(line) or file.tree)
    block = file.block_of(steps[0]) if steps else []
    if not steps or any(all(step is not one for one in block) for step in steps):
        return  # the last one is not certain
    file.insert_after(steps[-1], file.moved(statement, steps[-1].col_offset))
    file.remove(statement)


@Repair
def add_update(file: SourceFile, line: int) -> None:
    """Update the scaler after the step of a line; if it is the only one, the update elsewhere is left out."""
    found = file.sole_call(line, "step")
    if found is None:
        return
    (statement, call), scope = found, file.function_at(line) or file.tree
    update = f"{file.owner_of(call)}.update()"
    file.insert_after(statement, f"{' ' * statement.col_offset}{update}")
    if len(scaler_steps(file, file.owner_of(call), scope)) == 1:
        for node in ast.walk(scope):
            if isinstance(node, ast.Expr) and file.source(node) == update:
                file.remove(node)


@Repair
def update_before_continue(file: SourceFile, line: int, leaves: int = 0) -> None:
    """Step and update before a ``continue``, the first one after the line that scales the loss.

    A step whose gradients are unscaled was checked: it is skipped, as the author means it, and updated.
    """
    loop = next(reversed(loops_around(file.tree, line)), None)
    scales = [call for call in file.calls_at(line) if called_name(call) == "scale"]
    if loop is None or not scales or not isinstance(scales[0].func, ast.Attribute):
        return
    scaler = file.source(scales[0].func.value)
    inside = list(ast.walk(loop))
    steps = [
        n for n in inside if isinstance(n, ast.Call) and file.source(n.func) == f"{scaler}.step"
    ]
    inner = {
        id(node)
        for other in inside
        if isinstance(other, ast.For | ast.While) and other is not loop
        for node in ast.walk(other)
    }
    lines = [n for n in inside if isinstance(n, ast.Continue) and n.lineno > line]
    lines = [n for n in lines if id(n) not in inner]  # those go on with an inner loop
    lines = [n for n in lines if n.lineno >= leaves]
    if not steps or not lines or lines[0].lineno > steps[0].lineno:
        return
    block = file.block_of(lines[0])
    if any(file.source(c.func) == f"{scaler}.update" for one in block for c in all_calls(one)):
        return
    # In ``if bad: continue`` the calls share the line.
    gap = f"\n{' ' * lines[0].col_offset}" if file.is_alone(lines[0]) else "; "
    before = (n for n in inside if isinstance(n, ast.Call) and line < n.lineno < lines[0].lineno)
    checked = any(file.source(call.func) == f"{scaler}.unscale_" for call in before)
    step = [] if checked else [file.source(steps[0])]
    file.replace(lines[0], gap.join([*step, f"{scaler}.update()", "continue"]))
    file.changed.append(lines[0].lineno)


@Repair
def zero_gradients(file: SourceFile, line: int) -> None:
    """Zero the gradients after a step."""
    found = file.sole_call(line)
    if found is None:
        return
    stepping, call = found
    optimizer = stepped_optimizer(file, call)
    if not optimizer or not are_free_after(file, stepping, optimizer):
        return
    block = file.block_of(stepping)
    at = next(index for index, other in enumerate(block) if other is stepping)
    after = block[at + 1] if at + 1 < len(block) else None
    updates = [] if after is None else list(all_calls(after))
    is_update = [file.source(c) for c in updates] == [f"{file.owner_of(call)}.update()"]
    last = after if after is not None and is_update else stepping
    file.insert_after(last, f"{' ' * stepping.col_offset}{optimizer}.zero_grad()")


@Repair
def schedule_after_step(file: SourceFile, line: int) -> None:
    """Move a schedule with the steps that were applied."""
    found = file.sole_call(line)
    row = 0 if found is None else found[0].lineno
    before = [c for c in steps_around(file, row) if c.args and c.lineno < row]
    step = file.statement_at(before[-1].lineno) if before else None
    if step is None or found is None:
        return
    scaler = file.owner_of(before[-1])
    updates = [c for c in file.calls if file.source(c.func) == f"{scaler}.update"]
    if any(step.lineno < c.lineno < row for c in updates):
        margin = " " * step.col_offset
        file.insert_before(step, f"{margin}scale_before = {scaler}.get_scale()")
        file.indent(found[0], f"if {scaler}.get_scale() >= scale_before:")


@Repair
def optimizer_last(file: SourceFile, line: int) -> None:
    """Make the optimizer after the model was copied, replaced or wrapped."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return  # of a return statement, the caller gives it its name
    name, block = file.source(statement.targets[0]), file.block_of(statement)
    at = next(index for index, one in enumerate(block) if one is statement)
    later = block[at + 1 :]
    parts = ((one, part) for one in later for part in ast.walk(one))
    named = ((one, part) for one, part in parts if isinstance(part, ast.Name | ast.Attribute))
    uses = [one for one, part in named if file.source(part) == name]
    if not later or (uses and uses[0] is later[0]):
        return
    insert, at_one = (file.insert_before, uses[0]) if uses else (file.insert_after, later[-1])
    insert(at_one, file.moved(statement, statement.col_offset))
    file.remove(statement)
    file.changed.append(statement.lineno)


def is_returned(place: Place) -> bool:
    """Return whether a line returns what it makes, so that its caller gives it its name."""
    file = SourceFile.read(place[0])
    statement = None if file is None else file.statement_at(place[1])
    return statement is None or isinstance(statement, ast.Return)
