"""The order of scaler calls in a step: scale, unscale, clip, step, update; and scalers that do not fit."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.conditions import AMP_IS_ON, exclude_each_other, is_schedule_check
from halfguard.lint.expressions import (
    argument,
    boolean,
    called_name,
    name_of,
    number,
    receiver,
    string,
)
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import rule
from halfguard.lint.steps import Event, EventKind, Step
from halfguard.lint.syntax_tree import Function, parameter_names
from halfguard.repairs.scaling import scale_loss, unscale_before_clipping
from halfguard.repairs.settings import anomaly_off
from halfguard.repairs.steps import leave_out_step, step_by_scaler


@rule("HG201", "clip_grad")
def check_clipping(file: PythonFile) -> Iterator[Match]:
    """Find clipping of scaled gradients; one call of unscale_ mends all of a step."""
    for step in file.steps:
        is_mended = False
        for clip in step.find("clip"):
            if "master_params" in file.text(clip.node):
                continue  # of apex, which has unscaled them
            later = step.events[step.events.index(clip) :]
            steps = [e for e in later if e.kind == "scaler_step" and not e.excludes(clip)]
            if (
                not steps
                or not step.before(clip, "scaled_backward")
                or step.before(clip, "unscale")
            ):
                continue
            same = file.function_of(clip.node) is file.function_of(steps[0].node)
            fix: Fix | None = None
            # unscale_ raises where no step follows: in other micro-batches, or without mixed precision.
            always = set(steps[0].conditions) <= set(clip.conditions)
            if same and always and not is_mended:
                line = clip.node.lineno
                fix = file.fix("safe", unscale_before_clipping.edit, line)
                is_mended = True
            message = "The gradients are still multiplied by the loss scale when clipped."
            yield match_at(clip.node, message, fix)


@rule("HG202", "unscale_", "accelerator.clip_grad")
def check_unscaling(file: PythonFile) -> Iterator[Match]:
    """Find unscaling that happens more often than stepping."""
    yield from _check_accelerate(file)
    for step in file.steps:
        steps = step.find("scaler_step")
        for unscale in step.find("unscale"):
            if any(map(is_schedule_check, unscale.tests)):
                continue  # once per step, in whatever micro-batch
            mine = [
                s for s in steps if s.optimizer == unscale.optimizer and not s.excludes(unscale)
            ]
            if mine and all(_runs_less_often(step, s, unscale) for s in mine):
                message = (
                    "unscale_ runs in every micro-batch, but the step does not, so unscale_ will "
                    "raise an error."
                )
                yield match_at(unscale.node, message)
            elif _is_repeated(file, step, unscale):
                message = "unscale_ has already run in this step, so this call will raise an error."
                yield match_at(unscale.node, message)


def _check_accelerate(file: PythonFile) -> Iterator[Match]:
    """Find clipping by an Accelerator in every micro-batch of an accumulation."""
    if "sync_gradients" in file.source.text or not _may_accelerate_fp16(file):
        return
    if not _accumulates_gradients(file):
        return
    for call in file.calls("clip_grad_norm_", "clip_grad_value_"):
        blocks = [p for p in file.ancestors(call) if isinstance(p, ast.With)]
        opened = [
            i.context_expr for b in blocks for i in b.items if isinstance(i.context_expr, ast.Call)
        ]
        inside = any(name_of(one.func).endswith("accelerator.accumulate") for one in opened)
        if inside and name_of(receiver(call)).endswith("accelerator"):
            message = (
                "This call unscales in every micro-batch, but the step does not run in every one."
            )
            yield match_at(call, message)


def _is_repeated(file: PythonFile, step: Step, unscale: Event) -> bool:
    """Return whether the same optimizer was unscaled before in this step, without an update since."""
    for earlier in step.before(unscale, "unscale"):
        same = (earlier.owner, earlier.optimizer) == (unscale.owner, unscale.optimizer)
        certain = unscale.optimizer != "" and set(earlier.conditions) <= set(unscale.conditions)
        if same and certain and earlier.loops == unscale.loops and earlier.node is not unscale.node:
            return not file.is_assigned_between(earlier, unscale) and all(
                e.kind != "scaler_update" for e in step.between(earlier, unscale)
            )
    return False


def _runs_less_often(step: Step, scaler_step: Event, unscale: Event) -> bool:
    """Return whether a step runs less often than ``unscale_``: on a schedule, or in fewer loops."""
    extra = [t for t in scaler_step.tests if t not in unscale.tests]
    if any(is_schedule_check(test) for test in extra):
        return True
    inner = step.inner_loops(unscale)
    if not inner or any(loop in scaler_step.loops for loop in inner):
        return False
    target = inner[-1].target if isinstance(inner[-1], ast.For) else None
    # A loop over optimizers is not a loop over micro-batches.
    return target is None or "opt" not in ast.unparse(target).lower()


@rule("HG201", "clip_grad", also=("accelerator.backward",))
def check_torch_clipping(file: PythonFile) -> Iterator[Match]:
    """Find torch's clipping next to the backward pass of an Accelerator."""
    if any(True for _ in file.calls("unscale_gradients", "unscale_")):
        return
    around = {
        file.function_of(call)
        for call in file.calls("backward")
        if name_of(receiver(call)).endswith("accelerator")
    }
    if not around or not _may_accelerate_fp16(file):
        return
    for call in file.calls("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
        if file.function_of(call) in around and file.is_torch_call(call):
            message = "Accelerate has not unscaled these gradients yet when torch clips them."
            fix = file.fix("safe", unscale_before_clipping.edit, call.lineno)
            yield match_at(call, message, fix)


def _may_accelerate_fp16(file: PythonFile) -> bool:
    """Return whether an Accelerator of this file is asked for fp16, or for what an option offers."""
    asked = [argument(call, -1, "mixed_precision") for call in file.calls("Accelerator")]
    values = [file.assigned_value(node) for node in asked if node is not None]
    if any(string(value) == "fp16" for value in values):
        return True
    chosen = any(not isinstance(value, ast.Constant) for value in values)
    offered = (n for n in ast.walk(file.root) if string(n) == "fp16") if chosen else ()
    return any(not _is_forbidden(file, node) for node in offered)


def _is_forbidden(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a string is compared, and the code goes on only if the comparison fails."""
    compared, wanted, child = False, True, node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.Compare):
            compared = True
            wanted ^= any(isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) for op in parent.ops)
        elif isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            wanted = not wanted
        elif isinstance(parent, ast.stmt):
            if isinstance(parent, ast.If) and child is parent.test:
                wanted ^= isinstance(parent.body[-1], ast.Raise)
            break
        child = parent
    return compared and not wanted


def _accumulates_gradients(file: PythonFile) -> bool:
    """Return whether an Accelerator of this file is asked for more than one micro-batch per step."""
    for call in file.calls("Accelerator"):
        steps = argument(call, -1, "gradient_accumulation_steps")
        if steps is not None and number(file.assigned_value(steps)) != 1:
            return True
        if argument(call, -1, "gradient_accumulation_plugin") is not None:
            return True
    stored = (n for n in file.nodes(ast.Attribute) if isinstance(n.ctx, ast.Store))
    return any(node.attr == "gradient_accumulation_steps" for node in stored)


@rule("HG205", "caler", also=(".step(",))
def check_raw_steps(file: PythonFile) -> Iterator[Match]:
    """Find raw steps after scaled backward passes."""
    for step in () if _has_constant_scale(file) else file.steps:
        for raw in step.find("optimizer_step"):
            # Only the last backward pass counts: in a GAN, one of the two losses may not be scaled.
            latest = step.before(raw, "scaled_backward", "backward")
            if (AMP_IS_ON, False) in raw.conditions or not latest:
                continue
            stepped = [s for s in step.find("scaler_step") if s.optimizer == raw.owner]
            by_hand = step.before(raw, "unscale") and not stepped
            if latest[0].kind != "scaled_backward" or by_hand or not latest[0].shares_loop(raw):
                continue
            already = any(not s.excludes(raw) for s in stepped)
            how = "in addition to scaler.step" if already else "on gradients that are still scaled"
            fix = _step_fix(file, raw, latest[0], already=already)
            yield match_at(raw.node, f"{raw.owner_name}.step() runs {how}.", fix)


def _has_constant_scale(file: PythonFile) -> bool:
    """Return whether scalers only multiply by numbers that the file chooses, as Adam's updates allow."""
    made = file.roles.constructed_scalers
    for call in made:
        position = 1 if call.args and string(call.args[0]) else 0  # after the device
        if argument(call, position, "init_scale") is None:
            return False
    kinds: tuple[EventKind, ...] = ("scaler_step", "scaler_update", "unscale")
    return bool(made) and not any(step.has(*kinds) for step in file.steps)


def _step_fix(file: PythonFile, raw: Event, scaled: Event, *, already: bool) -> Fix | None:
    line = raw.node.lineno
    if already:
        return file.fix("safe", leave_out_step.edit, line)
    if isinstance(raw.node, ast.Call) and raw.node.args:
        return None
    place = (file.path, scaled.node.lineno)
    return file.fix("safe", step_by_scaler.edit, line, place)


@rule("HG206", "caler", also=(".step(",))
def check_unscaled(file: PythonFile) -> Iterator[Match]:
    """Find unscaled backward passes before ``scaler.step``."""
    for step in file.steps:
        for scaler_step in step.find("scaler_step"):
            before = _backwards_before(step, scaler_step)
            if not before or any(event.kind != "backward" for event in before):
                continue
            node, function = before[0].node, file.function_of(before[0].node)
            loss = receiver(node) if isinstance(node, ast.Call) else None
            names = parameter_names(function) if function else []
            if isinstance(loss, ast.Name) and loss.id in names:
                continue  # its caller may have scaled it
            fix: Fix | None = None
            call = scaler_step.node
            if function is file.function_of(call) and isinstance(call, ast.Call):
                line, scaler = node.lineno, file.text(call.func).rpartition(".")[0]
                fix = file.fix("safe", scale_loss.edit, line, scaler)
            message = (
                f"This loss is not scaled, but {scaler_step.owner_name}.step divides by the scale."
            )
            yield match_at(node, message, fix)


def _backwards_before(step: Step, scaler_step: Event) -> list[Event]:
    """Return the backward passes since the step of another optimizer; all of them if there are none."""
    kinds: tuple[EventKind, ...] = ("backward", "scaled_backward", "framework_backward")
    found = [
        one
        for one in step.before(scaler_step, *kinds)
        if not any(e.kind == "zero_grad" for e in step.between(one, scaler_step))
    ]
    steps = step.before(scaler_step, "scaler_step")
    others = [e for e in steps if e.optimizer != scaler_step.optimizer]
    if others:
        last = step.events.index(others[0])
        return [e for e in found if step.events.index(e) > last] or found
    return found


_EPOCHS = re.compile(r"epoch|(^|_)(ep|it|iter|iteration|step)s?($|_)", re.IGNORECASE)


@rule("HG210", "GradScaler")
def check_new_scalers(file: PythonFile) -> Iterator[Match]:
    """Find scalers that are created in a loop around a training step, or in a function of each epoch."""
    steps = [step for step in file.steps if step.has("scaled_backward")]
    inner = {step.loop for step in steps}
    outer = {loop for step in steps for event in step.events for loop in event.loops} - inner
    trained = {file.function_of(e.node) for s in steps for e in s.events}
    for call in file.roles.constructed_scalers:
        around = list(_around(file, call))
        if any(p in inner or (p in outer and _is_over_epochs(p)) for p in around):
            yield match_at(call, "Every iteration starts again with the initial scale.")
            continue
        function = file.function_of(call)
        if function is None or function not in trained:
            continue
        callers = file.callers_of(function)
        per_epoch = any(_is_over_epochs(p) for c in callers for p in _around(file, c))
        if not per_epoch and ("epoch" not in function.name or _is_unused(file, function)):
            continue
        yield match_at(call, "Every call of this function starts again with the initial scale.")


def _is_unused(file: PythonFile, function: Function) -> bool:
    """Return whether a program defines a function and never names it again."""
    is_program = "__main__" in file.source.text and file.class_of(function) is None
    return is_program and file.words[function.name] == 1


def _around(file: PythonFile, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes around a node that are in the same function."""
    for parent in file.ancestors(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        yield parent


def _is_over_epochs(node: ast.AST) -> bool:
    """Return whether a loop continues one training; another loop may train a new model in each round."""
    if isinstance(node, ast.While):
        return bool(_EPOCHS.search(ast.unparse(node.test)))
    if isinstance(node, ast.For):
        # ``for dataset, epochs in table.items()`` goes through trainings, not through epochs.
        called = called_name(node.iter) if isinstance(node.iter, ast.Call) else ""
        return called != "items" and bool(
            _EPOCHS.search(ast.unparse(node.target) + ast.unparse(node.iter))
        )
    return False


@rule("HG214", "FullyShardedDataParallel", also=("GradScaler(",))
def check_fsdp(file: PythonFile) -> Iterator[Match]:
    """Find plain scalers beside models that FSDP1 shards."""
    names = [*file.nodes(ast.Name), *file.nodes(ast.Attribute)]  # an import alone is no use
    if any(file.full_name(n).endswith("ShardedGradScaler") for n in names):
        return
    wrapped = [call for call in file.nodes(ast.Call) if _shards(file, call)]
    for call in file.roles.constructed_scalers if wrapped else ():
        enabled = argument(call, -1, "enabled")
        texts = [ast.unparse(n) for n in (enabled, file.assigned_value(enabled)) if n is not None]
        # Off, or on or off by a test for sharding.
        is_off = boolean(enabled) is False or any(re.search("fsdp|shard", t, re.I) for t in texts)
        if not file.is_torch_call(call) or is_off:
            continue
        if not any(exclude_each_other(file, call, other) for other in wrapped):
            message = "A plain GradScaler checks only this rank's shard, so the FSDP ranks diverge."
            yield match_at(call, message)


def _shards(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a call wraps a model in FSDP1 that shards its gradients."""
    name = file.full_name(call.func)
    is_fsdp = name.startswith("torch.distributed.fsdp") and name.endswith(
        "FullyShardedDataParallel"
    )
    strategy = file.assigned_value(argument(call, 2, "sharding_strategy")) if is_fsdp else None
    return is_fsdp and not name_of(strategy).endswith("NO_SHARD")


@rule("HG307", "detect_anomaly")
def check_anomaly(file: PythonFile) -> Iterator[Match]:
    """Find anomaly mode in files that construct a scaler, and in a Trainer of Lightning that has one."""
    message = "This raises an error on an overflow that the scaler would skip."
    for call in file.calls("Trainer") if file.imports("lightning", "pytorch_lightning") else ():
        settings = dict(settings_of(file, call))
        value = settings.get("detect_anomaly")
        if value is not None and boolean(value) is True and _is_fp16(file, settings):
            yield match_at(value, message)
    for call in file.calls("detect_anomaly", "set_detect_anomaly"):
        mode = called_name(call) == "detect_anomaly" or boolean(argument(call, 0, "mode")) is True
        around = (ast.unparse(p.test) for p in file.ancestors(call) if isinstance(p, ast.If))
        if any(re.search("anomal|debug", text, re.I) for text in around):
            continue  # somebody is looking for a NaN
        if file.roles.constructed_scalers and file.is_torch_call(call) and mode:
            line = call.lineno
            fix = file.fix("unsafe", anomaly_off.edit, line)
            yield match_at(call, message, fix)


def settings_of(file: PythonFile, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the keywords of a call, with those of ``**dict(...)`` and ``**{...}``."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
            continue
        given = file.assigned_value(keyword.value)
        if isinstance(given, ast.Call):
            yield from ((k.arg, k.value) for k in given.keywords if k.arg is not None)
        elif isinstance(given, ast.Dict):
            pairs = zip(given.keys, given.values, strict=True)
            yield from ((name, value) for key, value in pairs if (name := string(key)))


def _is_fp16(file: PythonFile, settings: dict[str, ast.expr]) -> bool:
    """Return whether a Trainer scales the loss: by its precision, or by a plugin for ``16-mixed``."""
    precision = file.assigned_value(settings.get("precision"))
    if string(precision) in {"16-mixed", "16"} or number(precision) == 16:
        return True
    plugins = file.assigned_value(settings.get("plugins"))
    parts = ast.walk(plugins) if plugins is not None else ()
    return any(string(file.assigned_value(part)) == "16-mixed" for part in parts)
