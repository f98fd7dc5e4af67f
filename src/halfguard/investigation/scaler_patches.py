"""Patches of a loop that misuses its scaler: steps without it, loops that never update it or have none.

A call counts only if its owner is known as a scaler or an optimizer: by its name, by what it was made of, or
by other calls of it in the file. ``env.step(action)`` is neither.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator

from halfguard.investigation.passes import Made, Place
from halfguard.investigation.source_patches import switch_on
from halfguard.replaying.source_edits import (
    SourceFile,
    all_calls,
    called_name,
    calls_at,
    has_call,
    loops_around,
    owner_of,
    read_statement,
)

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_HARMLESS = ("zero_grad", "no_grad", "enable_grad", "set_grad_enabled", "requires_grad_")


def steps_around(file: SourceFile, line: int) -> list[ast.Call]:
    """Return the calls ``.step(...)`` of the function around a line: those of scalers, if there are any."""
    scope = file.function_at(line) or file.tree
    found = [c for c in _own_nodes(scope) if isinstance(c, ast.Call) and called_name(c) == "step"]
    by_scaler = [c for c in found if c.args and is_scaler(file, owner_of(file, c))]
    plain = [c for c in found if not c.args and is_optimizer(file, owner_of(file, c))]
    return sorted(by_scaler or plain, key=lambda call: call.lineno)


def is_scaler(file: SourceFile, owner: str) -> bool:
    """Return whether an expression is known as a gradient scaler."""
    named = "scaler" in owner.rsplit(".", maxsplit=1)[-1].lower()
    return named or has_call(file, owner, "scale", "unscale_") or _is_made_by(file, owner, "Scaler")


def is_optimizer(file: SourceFile, owner: str) -> bool:
    """Return whether an expression is known as an optimizer; a schedule is none."""
    name = owner.rsplit(".", maxsplit=1)[-1].lower()
    if not owner or "sched" in name or is_scaler(file, owner):
        return False
    return "opt" in name or has_call(file, owner, "zero_grad") or _is_made_by(file, owner, "optim")


def stepped_optimizer(file: SourceFile, call: ast.Call) -> str:
    """Return the optimizer that a call steps; empty if it is no such call, or if it has a closure."""
    owner, given = owner_of(file, call), call.args[0] if len(call.args) == 1 else None
    if called_name(call) != "step" or call.keywords:
        return ""
    if isinstance(given, ast.Name | ast.Attribute) and is_scaler(file, owner):
        return file.source(given)
    return owner if not call.args and is_optimizer(file, owner) else ""


def are_free_after(file: SourceFile, stepping: ast.stmt, optimizer: str) -> bool:
    """Return whether nothing reads gradients after a step, and its loop has no zeroing of another rhythm."""
    nodes = list(_own_nodes(file.function_at(stepping.lineno) or file.tree))
    read = (n for n in nodes if getattr(n, "lineno", 0) > (stepping.end_lineno or 0))
    if any(_names_gradients(node) for node in read):
        return False
    loops = [one for one in nodes if isinstance(one, ast.For | ast.AsyncFor | ast.While)]
    around = [one for one in loops if one.lineno <= stepping.lineno <= (one.end_lineno or 0)]
    inner = max(around, key=lambda one: one.lineno, default=None)
    calls = () if inner is None else all_calls(inner)
    return not any(file.source(call.func) == f"{optimizer}.zero_grad" for call in calls)


def _names_gradients(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "grad"
    name = called_name(node) if isinstance(node, ast.Call) else ""
    return ("clip" in name or "grad" in name) and name not in _HARMLESS


def looks_at_gradients(node: ast.AST) -> bool:
    """Return whether an expression may read or change gradients, functions of the user's own included."""
    if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
        return True
    function = node.func if isinstance(node, ast.Call) else None
    own = isinstance(function, ast.Name) and not hasattr(builtins, function.id)
    return own or _names_gradients(node)


def first_look(
    file: SourceFile, backward: ast.stmt, stepping: ast.stmt
) -> tuple[ast.stmt | None, bool]:
    """Return the first statement beside a step that looks at gradients, and whether all stand beside it.

    What stands elsewhere between the backward pass and the step may run more often than the step.
    """
    block = file.block_of(stepping)
    scope = file.function_at(stepping.lineno) or file.tree
    looking, beside = list[ast.stmt](), True
    for node in _own_nodes(scope):
        line = getattr(node, "lineno", 0)
        if not (backward.end_lineno or 0) < line < stepping.lineno or not looks_at_gradients(node):
            continue
        around = [one for one in block if one.lineno <= line <= (one.end_lineno or 0)]
        holds_backward = [one for one in around if one.lineno <= backward.lineno]
        looking += around
        beside &= bool(around) and not holds_backward
    return min(looking, key=lambda one: one.lineno, default=None), beside


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, or of a module, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, _SCOPES):
            yield child
            yield from _own_nodes(child)


def _is_made_by(file: SourceFile, owner: str, word: str) -> bool:
    """Return whether a name is assigned a call with a word in its name, such as ``torch.optim.SGD``."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and word in file.source(node.value.func)
        and any(file.source(target) == owner for target in node.targets)
        for node in ast.walk(file.tree)
    )


def add_scaler(backward: Place, made: Made, scale: float) -> str:
    """Scale the loss of a backward pass, and let the scaler step; return the patch."""
    file, statement = read_statement(backward)
    if file is None or statement is None:
        return ""
    scope = file.function_at(statement.lineno) or file.tree
    calls = [c for c in all_calls(scope) if called_name(c) == "backward"]
    steps = [c for c in steps_around(file, statement.lineno) if not c.args]
    stepping = file.statement_at(steps[0].lineno) if len(steps) == 1 else None
    function = calls[0].func if len(calls) == 1 else None
    taken = any(isinstance(n, ast.Name) and n.id == "scaler" for n in ast.walk(file.tree))
    scaler = "grad_scaler" if taken else "scaler"
    if not isinstance(stepping, ast.Expr) or not isinstance(function, ast.Attribute):
        return ""
    looking, beside = first_look(file, statement, stepping)
    if not statement.lineno <= function.lineno <= (statement.end_lineno or 0) or not beside:
        return ""
    if not _make(file, statement, made, f"{scaler} = ", f"init_scale={scale!r}"):
        return ""
    file.replace(function.value, f"{scaler}.scale({file.source(function.value)})")
    margin, optimizer = " " * stepping.col_offset, owner_of(file, steps[0])
    file.replace(stepping, f"{scaler}.step({optimizer})\n{margin}{scaler}.update()")
    if looking is not None:
        _insert_between(file, statement, looking, f"{margin}{scaler}.unscale_({optimizer})")
    return file.patch()


def _insert_between(file: SourceFile, first: ast.stmt, last: ast.stmt, line: str) -> None:
    """Write a line before a statement; directly after the first one of its block, if it is compound."""
    if not file.is_alone(last) and any(one is first for one in file.block_of(last)):
        file.insert_after(first, line)
    else:
        file.insert_before(last, line)


def _make(file: SourceFile, backward: ast.stmt, made: Made, target: str, options: str) -> bool:
    """Make the scaler after the optimizer, if that is known in the loop's function; else before the loop."""
    around = file.function_at(backward.lineno)
    is_here = made.optimizer is not None and made.optimizer[0] == file.path
    making = file.statement_at(made.optimizer[1]) if made.optimizer and is_here else None
    if making is not None and file.function_at(making.lineno) in (None, around):
        scaler = f"torch.amp.GradScaler({_device(file, making.lineno, made)}, {options})"
        file.insert_after(making, f"{' ' * making.col_offset}{target}{scaler}")
        return True
    loops = loops_around(around or file.tree, backward.lineno)
    if not loops:
        return False
    loop = loops[0]
    scaler = f"torch.amp.GradScaler({_device(file, loop.lineno, made)}, {options})"
    row, column = loop.lineno, loop.col_offset
    start = ast.Pass(lineno=row, col_offset=column, end_lineno=row, end_col_offset=column)
    file.replace(start, f"{target}{scaler}\n{' ' * column}")
    return True


def _device(file: SourceFile, line: int, made: Made) -> str:
    """Return the device of the FP16 region as it is written there, if its names are known on a line."""
    region = made.autocast
    if region is not None and region[0] == file.path:
        same = file.function_at(region[1]) is file.function_at(line)
        for call in calls_at(file, region[1]):
            named = [k.value for k in call.keywords if k.arg == "device_type"]
            given = [*call.args[:1], *named] if called_name(call) == "autocast" else []
            if given and (same or isinstance(given[0], ast.Constant)):
                return file.source(given[0])
    return f'"{made.autocast_device}"'


def step_by_scaler(made: Made) -> list[str]:
    """Return ways to mend a step on gradients that are still scaled, the most specific first."""
    if made.raw_step is None:
        return []
    ways: list[Callable[[Place, Made], str]] = [_prepare_optimizer, _lightning_optimizer]
    ways.append(_leave_out_step if made.stepped_by_scaler else _call_scaler)
    return [patch for way in ways if (patch := way(made.raw_step, made))]


def _leave_out_step(place: Place, made: Made) -> str:  # noqa: ARG001
    """Leave the statement out: the scaler has stepped before."""
    file, statement = read_statement(place)
    if file is None or not isinstance(statement, ast.Expr):
        return ""
    file.replace(statement, "pass")
    return file.patch()


def _call_scaler(place: Place, made: Made) -> str:
    """Step by the scaler whose scaling is known; both lines must be in one function."""
    found = _stepped(place)
    if found is None or made.scaling is None or made.scaling[0] != place[0]:
        return ""
    file, statement, optimizer = found
    scales = [c for c in calls_at(file, made.scaling[1]) if called_name(c) == "scale"]
    same = file.function_at(made.scaling[1]) is file.function_at(place[1])
    if not scales or not same or not isinstance(scales[0].func, ast.Attribute):
        return ""
    scaler, margin = file.source(scales[0].func.value), " " * statement.col_offset
    file.replace(statement, f"{scaler}.step({optimizer})\n{margin}{scaler}.update()")
    return file.patch()


def _prepare_optimizer(place: Place, made: Made) -> str:  # noqa: ARG001
    """Give the optimizer to Accelerate's prepare, if it was left out there."""
    found = _stepped(place)
    return "" if found is None else add_to_prepare(place, found[2])[0]


def add_to_prepare(place: Place, name: str) -> tuple[str, Place]:
    """Give something more to Accelerate's prepare, in the file of a line; return the patch and the line."""
    file = SourceFile.read(place[0])
    for node in () if file is None else ast.walk(file.tree):
        value = node.value if isinstance(node, ast.Assign) else None
        if (
            file is None
            or not isinstance(node, ast.Assign)
            or not isinstance(value, ast.Call)
            or called_name(value) != "prepare"
        ):
            continue
        given = [file.source(argument) for argument in value.args]
        if name not in given and len(node.targets) == 1:
            targets = node.targets[0]
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            left = ", ".join([*map(file.source, names), name])
            function = file.source(value.func)
            file.replace(node, f"{left} = {function}({', '.join([*given, name])})")
            return file.patch(), (file.path, node.lineno)
    return "", place


def _lightning_optimizer(place: Place, made: Made) -> str:  # noqa: ARG001
    """Let Lightning wrap its optimizers, so that their steps unscale."""
    return switch_on(place, "use_pl_optimizer", anywhere=True)


def _stepped(place: Place) -> tuple[SourceFile, ast.stmt, str] | None:
    """Return the statement ``optimizer.step()`` on a line, and the optimizer."""
    file, statement = read_statement(place)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if file is None or statement is None or not isinstance(call, ast.Call):
        return None
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return None
    return file, statement, file.source(call.func.value)


def update_before_continue(made: Made) -> tuple[str, Place] | None:
    """Let an iteration that is left by ``continue`` step and update the scaler; return patch and line."""
    if made.scaling is None:
        return None
    file = SourceFile.read(made.scaling[0])
    loops = [] if file is None else loops_around(file.tree, made.scaling[1])
    if file is None or not loops:
        return None
    loop = loops[-1]
    scales = [call for call in calls_at(file, made.scaling[1]) if called_name(call) == "scale"]
    if not scales or not isinstance(scales[0].func, ast.Attribute):
        return None
    scaler = file.source(scales[0].func.value)
    steps = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.Call) and file.source(node.func) == f"{scaler}.step"
    ]
    inner = {
        id(node)
        for other in ast.walk(loop)
        if isinstance(other, ast.For | ast.While) and other is not loop
        for node in ast.walk(other)
    }
    lines = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.Continue)
        and node.lineno > made.scaling[1]
        and id(node) not in inner  # which goes on with an inner loop
    ]
    if not steps or not lines or lines[0].lineno > steps[0].lineno:
        return None
    # In ``if bad: continue`` the calls share the line.
    gap = f"\n{' ' * lines[0].col_offset}" if file.is_alone(lines[0]) else "; "
    file.replace(lines[0], gap.join([file.source(steps[0]), f"{scaler}.update()", "continue"]))
    patch = file.patch()
    return (patch, (file.path, lines[0].lineno)) if patch else None
