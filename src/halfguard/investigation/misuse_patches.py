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
from halfguard.investigation.passes import Misused, MisuseKind, PassResult, Place
from halfguard.investigation.scaler_patches import (
    add_scaler,
    add_to_prepare,
    are_free_after,
    stepped_optimizer,
    steps_around,
)
from halfguard.investigation.value_patches import keep_integers
from halfguard.records.autopsy import Cure
from halfguard.replaying.source_edits import (
    SourceFile,
    all_calls,
    called_name,
    calls_at,
    owner_of,
    read_statement,
)


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
    file, statement = read_statement(one.place)
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
    file, statement = read_statement(one.place)
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
    file, statement = read_statement(one.place)
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
    file, statement = read_statement(one.place)
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
    file, statement = read_statement(one.place)
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
    file, _ = read_statement(one.place)
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
    file, stepping = read_statement(one.by)
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
    if one.place is not None:
        yield add_scaler(one.place, first.made, one.scale)


def _fp32_weights(one: Misused, first: PassResult) -> Iterator[str]:
    made = first.made
    half = one.place if one.kind == "bad buffer" else made.half_weights
    known = {"half_weights": half, "half_dtype": one.dtype or made.half_dtype}
    return patches.fp32_weights(made.model_copy(update=known))


def _keep_integers(one: Misused, _first: PassResult) -> Iterator[str]:
    if one.place is not None:
        yield keep_integers(one.place)


# -- pieces of a loop


def _scaler_of_step(place: Place | None) -> str:
    file, statement = read_statement(place)
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
