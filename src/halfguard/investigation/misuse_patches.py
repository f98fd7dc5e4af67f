"""Patches of calls that train wrongly: what is scaled, unscaled, clipped, zeroed or moved on at a wrong time.

Each function returns unified diffs, the most specific first; none if the source is written in a way that is
not known for certain.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from halfguard.investigation import source_patches as patches
from halfguard.investigation.advice import describe_place
from halfguard.investigation.crashes import Crash
from halfguard.investigation.cures import untried
from halfguard.investigation.integer_patches import keep_integers
from halfguard.investigation.order_patches import owner_of
from halfguard.investigation.passes import Made, Misused, MisuseKind, PassResult, Place
from halfguard.investigation.scaler_patches import add_to_prepare
from halfguard.investigation.source_patches import all_calls, called_name, calls_at
from halfguard.investigation.stepping_calls import (
    are_free_after,
    first_look,
    stepped_optimizer,
    steps_around,
)
from halfguard.records.autopsy import Cure
from halfguard.replaying.source_edits import SourceFile


def misuse_cures(first: PassResult) -> list[Cure]:
    """Return cures of what a run misuses; a run of the patched script has to show each."""
    return [cure for one in first.misuse for cure in cures_of(one, first)]


def cures_of(one: Misused, first: PassResult) -> list[Cure]:
    """Return the cures of one misuse."""
    if one.kind == "hidden error":
        crash = Crash(one.error, one.place, first.made)
        found = [cure.patch for cure in crash.cures()]
    else:
        make = _PATCHES.get(one.kind)
        found = [] if make is None else list(make(one, first))
    cures = [untried(one.sentence, patch) for patch in dict.fromkeys(found) if patch]
    return [*_prepared(one), *cures]


def _prepared(one: Misused) -> Iterator[Cure]:
    """Yield a schedule that Accelerate moves, if it was not given to prepare."""
    file, statement = _read(one.place)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        one.kind != "schedule"
        or one.place is None
        or file is None
        or not isinstance(call, ast.Call)
    ):
        return
    patch, line = add_to_prepare(one.place, owner_of(file, call))
    if patch:
        text = f"{one.sentence} Accelerate does so, if it is given the schedule: {describe_place(line)}."
        yield untried(text, patch)


def _unscale_before_clipping(one: Misused, _first: PassResult) -> Iterator[str]:
    file, statement = _read(one.place)
    if file is None or statement is None:
        return
    accelerator = next(
        (owner_of(file, c) for c in all_calls(file.tree) if called_name(c) == "prepare"), ""
    )
    clips = [c for c in all_calls(statement) if called_name(c).startswith("clip_grad_")]
    if accelerator and clips:
        file.replace(clips[0].func, f"{accelerator}.{called_name(clips[0])}")
        yield file.patch()
        return
    for step in steps_around(file, statement.lineno):
        if step.args and step.lineno > statement.lineno:
            margin, scaler = " " * statement.col_offset, owner_of(file, step)
            line = f"{margin}{scaler}.unscale_({file.source(step.args[0])})"
            file.insert_before(statement, line)
            yield file.patch()
            return


def _move_schedule_with_steps(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    if made.fused and made.optimizer is not None:
        yield patches.change_keyword(made.optimizer, "fused", "False")
    file, statement = _read(one.place)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if file is not None and isinstance(call, ast.Call) and one.place is not None:
        yield _move_if_stepped(file, statement)
    if made.scaler is not None:
        yield patches.begin_with_scale(made.scaler, first.scaler.last)


def _move_if_stepped(file: SourceFile, statement: ast.stmt | None) -> str:
    """Move a schedule only if the scale has not fallen."""
    if statement is None:
        return ""
    before = [
        c for c in steps_around(file, statement.lineno) if c.args and c.lineno < statement.lineno
    ]
    step = file.statement_at(before[-1].lineno) if before else None
    if step is None:
        return ""
    scaler = owner_of(file, before[-1])
    updates = [c for c in all_calls(file.tree) if file.source(c.func) == f"{scaler}.update"]
    if not any(step.lineno < c.lineno < statement.lineno for c in updates):
        return ""
    margin = " " * step.col_offset
    file.insert_before(step, f"{margin}scale_before = {scaler}.get_scale()")
    file.indent(statement, f"if {scaler}.get_scale() >= scale_before:")
    return file.patch()


def _scale_loss(one: Misused, _first: PassResult) -> Iterator[str]:
    """Scale the loss of a backward pass by the scaler that steps its optimizer."""
    file, statement = _read(one.place)
    scaler = _scaler_of_step(one.by)
    if file is None or statement is None or not scaler:
        return
    for call in all_calls(statement):
        function = call.func
        if not isinstance(function, ast.Attribute):
            continue
        if one.kind == "other scaler" and function.attr == "scale":
            file.replace(function.value, scaler)
            yield file.patch()
            return
        if one.kind == "not scaled" and function.attr == "backward":
            file.replace(function.value, f"{scaler}.scale({file.source(function.value)})")
            yield file.patch()
            return


def _unscale_penalty(one: Misused, _first: PassResult) -> Iterator[str]:
    file, statement = _read(one.place)
    if file is None or not isinstance(statement, ast.Assign):
        return
    scales = [c for c in all_calls(statement) if called_name(c) == "scale"]
    value = statement.value
    if not scales:
        return
    scaler = owner_of(file, scales[0])
    if isinstance(value, ast.Subscript):
        file.append(value, f" / {scaler}.get_scale()")
    elif isinstance(statement.targets[0], ast.Tuple) and len(statement.targets[0].elts) == 1:
        file.replace(value, f"({file.source(value)}[0] / {scaler}.get_scale(),)")
    else:
        file.replace(value, f"[g / {scaler}.get_scale() for g in {file.source(value)}]")
    yield file.patch()


def _scaler_for_device(one: Misused, first: PassResult) -> Iterator[str]:
    file, _ = _read(one.place)
    if file is None or one.place is None:
        return
    scalers = [c for c in calls_at(file, one.place[1]) if called_name(c) == "GradScaler"]
    if len(scalers) != 1:
        return
    device, call = f'"{first.made.autocast_device}"', scalers[0]
    if call.args and isinstance(call.args[0], ast.Constant):
        file.replace(call.args[0], device)
    elif not call.args:
        patches.set_keyword(file, call, "device", device)
    yield file.patch()


def _zero_gradients(one: Misused, _first: PassResult) -> Iterator[str]:
    """Zero the gradients directly after the step that has used them, or after the update of its scaler."""
    file, stepping = _read(one.by)
    call = stepping.value if isinstance(stepping, ast.Expr) else None
    if file is None or stepping is None or not isinstance(call, ast.Call):
        return
    optimizer = stepped_optimizer(file, call)
    if not optimizer or not are_free_after(file, stepping, optimizer):
        return
    block = file.block_of(stepping)
    at = next(index for index, other in enumerate(block) if other is stepping)
    after = block[at + 1] if at + 1 < len(block) else None
    updates = [] if after is None else list(all_calls(after))
    is_update = [file.source(c) for c in updates] == [f"{owner_of(file, call)}.update()"]
    last = after if after is not None and is_update else stepping
    file.insert_after(last, f"{' ' * stepping.col_offset}{optimizer}.zero_grad()")
    yield file.patch()


def _add_scaler(one: Misused, first: PassResult) -> Iterator[str]:
    """Scale the loss, and step by the scaler, which is made directly after the optimizer."""
    file, statement = _read(one.place)
    made = first.made
    if file is None or statement is None or made.optimizer is None:
        return
    making = file.statement_at(made.optimizer[1])
    scope = file.function_at(statement.lineno)
    backward = [c for c in all_calls(scope or file.tree) if called_name(c) == "backward"]
    steps = [c for c in steps_around(file, statement.lineno) if not c.args]
    stepping = file.statement_at(steps[0].lineno) if len(steps) == 1 else None
    function = backward[0].func if len(backward) == 1 else None
    together = making is not None and file.function_at(making.lineno) in (None, scope)
    if made.optimizer[0] != file.path or making is None or not together:
        return
    if not isinstance(stepping, ast.Expr) or not isinstance(function, ast.Attribute):
        return
    looking, beside = first_look(file, statement, stepping)
    if not statement.lineno <= function.lineno <= (statement.end_lineno or 0) or not beside:
        return
    taken = {node.id for node in ast.walk(file.tree) if isinstance(node, ast.Name)}
    name = "grad_scaler" if "scaler" in taken else "scaler"
    scaler = f"torch.amp.GradScaler({_device(made)}, init_scale={one.scale!r})"
    file.insert_after(making, f"{' ' * making.col_offset}{name} = {scaler}")
    file.replace(function.value, f"{name}.scale({file.source(function.value)})")
    margin, optimizer = " " * stepping.col_offset, owner_of(file, steps[0])
    if looking is not None:
        _insert_between(file, statement, looking, f"{margin}{name}.unscale_({optimizer})")
    file.replace(stepping, f"{name}.step({optimizer})\n{margin}{name}.update()")
    yield file.patch()


def _insert_between(file: SourceFile, first: ast.stmt, last: ast.stmt, line: str) -> None:
    """Write a line before a statement; directly after the first one of its block, if it is compound."""
    if not file.is_alone(last) and any(one is first for one in file.block_of(last)):
        file.insert_after(first, line)
    else:
        file.insert_before(last, line)


def _device(made: Made) -> str:
    """Return the device of the FP16 region as it is written there."""
    file = None if made.autocast is None else SourceFile.read(made.autocast[0])
    if file is not None and made.autocast is not None:
        for call in calls_at(file, made.autocast[1]):
            if called_name(call) == "autocast" and call.args:
                return file.source(call.args[0])
    return f'"{made.autocast_device}"'


def _fp32_weights(_one: Misused, first: PassResult) -> Iterator[str]:
    return patches.fp32_weights(first.made)


def _keep_integers(one: Misused, _first: PassResult) -> Iterator[str]:
    if one.place is not None:
        yield keep_integers(one.place)


# -- pieces of a loop


def _read(place: Place | None) -> tuple[SourceFile | None, ast.stmt | None]:
    file = None if place is None else SourceFile.read(place[0])
    return file, None if file is None or place is None else file.statement_at(place[1])


def _scaler_of_step(place: Place | None) -> str:
    file, statement = _read(place)
    if file is None or statement is None:
        return ""
    return next(
        (owner_of(file, c) for c in all_calls(statement) if called_name(c) == "step" and c.args), ""
    )


_PATCHES: dict[MisuseKind, Callable[[Misused, PassResult], Iterator[str]]] = {
    "clipped": _unscale_before_clipping,
    "schedule": _move_schedule_with_steps,
    "not scaled": _scale_loss,
    "other scaler": _scale_loss,
    "penalty": _unscale_penalty,
    "scaler off": _scaler_for_device,
    "not zeroed": _zero_gradients,
    "no scaler": _add_scaler,
    "lost updates": _fp32_weights,
    "bad buffer": _fp32_weights,
    "rounded integers": _keep_integers,
}
