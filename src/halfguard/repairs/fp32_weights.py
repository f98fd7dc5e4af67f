"""Repairs that keep weights in FP32: where they became half, after the optimizer was made, or in a module."""

from __future__ import annotations

import ast

from halfguard.repairs.casts import DTYPES, HALF, lift_casts
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import (
    Place,
    SourceFile,
    all_calls,
    assigned_target,
    called_name,
    given_to,
)

_DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'


@Repair
def fp32_weights(
    file: SourceFile,
    line: int,
    dtype: str | None,
    callers: tuple[Place, ...] = (),
    inputs: bool = True,
) -> None:
    """Leave out the cast of a model, and run its forward under autocast instead.

    Without a dtype nothing runs under autocast: its ``inputs`` are not cast to half either.
    Where the dtype of the cast is given by a caller, the caller's line is changed.
    """
    statement = file.statement_at(line)
    target = None if statement is None else assigned_target(statement)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        target = function.value if isinstance(function, ast.Attribute) else None
    if statement is None:
        return
    if isinstance(statement, ast.Return) and _leave_out_casts(file, statement):
        return  # there is no name whose forward could run under autocast
    if target is None or not _leave_out_casts(file, statement):
        _cast_elsewhere(file, statement, callers)
        if target is None or file.edits or file.instead or not lift_casts(file, line):
            return
    name, margin = file.source(target), " " * statement.col_offset
    if dtype is None:
        if inputs:
            _leave_out_casts_of_inputs(file, name)
        return
    region = f"torch.autocast({_DEVICE}, dtype=torch.{dtype})"
    file.insert_after(statement, f"{margin}{name}.forward = {region}({name}.forward)")


def _cast_elsewhere(file: SourceFile, statement: ast.stmt, callers: tuple[Place, ...]) -> None:
    """Write float32 where the dtype of a cast comes from: its only assignment, or the caller's line."""
    names = [
        given.id
        for call in all_calls(statement)
        if called_name(call) == "to" or any(k.arg in DTYPES for k in call.keywords)
        for given in given_to(call)
        if isinstance(given, ast.Name)
    ]
    for name in names:
        values = [one.value for one in file.assignments(name)]
        if len(values) == 1 and _is_half(values[0], file):
            file.replace(values[0], "torch.float32")
            return
        if _cast_by_caller(file, statement, name, callers):
            return


def _cast_by_caller(
    file: SourceFile, statement: ast.stmt, name: str, callers: tuple[Place, ...]
) -> bool:
    """Write float32 for an argument of the function around a statement, if its caller gave half."""
    function = file.function_at(statement.lineno)
    outer = SourceFile.read(callers[0][0]) if callers else None
    if function is None or outer is None:
        return False
    order = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    order = order[1:] if order[:1] == ["self"] else order
    for call in outer.calls_at(callers[0][1]):
        given = {k.arg: k.value for k in call.keywords} | dict(zip(order, call.args, strict=False))
        if called_name(call) == function.name and name in given and _is_half(given[name], outer):
            outer.replace(given[name], "torch.float32")
            file.instead = outer
            return True
    return False


def _leave_out_casts_of_inputs(file: SourceFile, name: str) -> None:
    """Leave out casts to half of what is passed to a model, or to its methods."""
    for call in file.calls:
        called = file.source(call.func)
        if called != name and not called.startswith(f"{name}."):
            continue
        for argument in given_to(call):
            if (
                isinstance(argument, ast.Call)
                and isinstance(argument.func, ast.Attribute)
                and _is_cast(argument, file)
            ):
                file.replace(argument, file.source(argument.func.value))


def _leave_out_casts(file: SourceFile, statement: ast.stmt) -> bool:
    """Leave out casts to half inside a statement; return whether there was one."""
    found = False
    for node in file.calls_of(statement.lineno):
        if isinstance(node.func, ast.Attribute) and _is_cast(node, file):
            kept = file.source(node.func.value)
            target = assigned_target(statement)
            same = target is not None and file.source(target) == kept
            if node is getattr(statement, "value", None) and (
                same or isinstance(statement, ast.Expr)
            ):
                file.remove(statement)
            else:
                file.replace(node, kept)
            return True
        named = [keyword.value for keyword in node.keywords if keyword.arg in DTYPES]
        for given in (*named, *node.args):
            if _is_half(given, file):
                file.replace(given, "torch.float32")
                found = True
    return found


def _is_cast(call: ast.Call, file: SourceFile) -> bool:
    name = called_name(call)
    if name in ("half", "bfloat16"):
        return not call.args and not call.keywords
    given = given_to(call)
    return name == "to" and len(given) == 1 and _is_half(given[0], file)


def _is_half(node: ast.expr, file: SourceFile) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_half(node.body, file) or _is_half(node.orelse, file)
    return file.source(node).removeprefix("torch.") in HALF


@Repair
def fp32_parameters(file: SourceFile, line: int) -> None:
    """Convert the parameters of an optimizer, where a GradScaler needs FP32 weights."""
    statement = file.statement_at(line)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    name, margin = file.source(statement.targets[0]), " " * statement.col_offset
    lines = (
        f"for group in {name}.param_groups:  # a GradScaler needs FP32 weights",
        '    for parameter in group["params"]:',
        "        parameter.data = parameter.data.float()",
    )
    file.insert_after(statement, "\n".join(margin + line for line in lines))


@Repair
def island(file: SourceFile, line: int, path: str) -> None:
    """Make an FP32 island of the module at a path below what a line makes; ``*`` is every layer of a list."""
    statement = file.statement_at(line)
    target = None if statement is None else assigned_target(statement)
    if statement is not None and target is not None:
        name, margin = file.source(target), " " * statement.col_offset
        above, star, below = path.partition("*")
        if star:
            layers = f'{name}.get_submodule("{above.rstrip(".")}")' if above else name
            inner = f'layer.get_submodule("{below.lstrip(".")}")' if below else "layer"
            file.insert_after(statement, f"{margin}for layer in {layers}:")
            file.insert_after(statement, f"{margin}    halfguard.fp32_island({inner})")
            return
        module = f'{name}.get_submodule("{path}")' if path else name
        file.insert_after(statement, f"{margin}halfguard.fp32_island({module})")
