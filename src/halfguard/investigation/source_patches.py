"""Changes of the user's source beyond the culprit's line, as patches: an argument, a cast, an inserted line.

Each function returns a unified diff, or an empty string if the source is written in a way that it does not
know for certain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import count

from halfguard.investigation.passes import Made, Place
from halfguard.replaying.source_edits import (
    SourceFile,
    all_calls,
    called_name,
    calls_at,
    read_statement,
)

_DTYPES = ("torch_dtype", "dtype")
_CONFIGS = ("SFTConfig", "DPOConfig", "RewardConfig")  # of TRL
HALF_NAMES = ("float16", "half", "bfloat16")
_DEVICE = '"cuda" if torch.cuda.is_available() else "cpu"'


def give_eps(made: Made, eps: str) -> str:
    """Give an optimizer another eps, if it has one."""
    if made.optimizer is None or made.eps is None:
        return ""
    file = SourceFile.read(made.optimizer[0])
    if file is None:
        return ""
    around = calls_at(file, made.optimizer[1])
    direct = [call for call in around if called_name(call) == made.optimizer_class]
    if len(direct) > 1:
        return ""
    if direct:
        set_keyword(file, direct[0], "eps", eps)
        return file.patch()
    arguments = [
        call
        for call in all_calls(file.tree)
        if (name := called_name(call)).endswith("TrainingArguments") or name in _CONFIGS
    ]
    if len(arguments) != 1:
        return ""
    set_keyword(file, arguments[0], "adam_epsilon", eps)
    return file.patch()


def keep_weights_in_fp32(
    place: Place | None, dtype: str | None, callers: tuple[Place, ...] = ()
) -> str:
    """Leave out the cast of a model, and run its forward under autocast instead.

    Without a dtype nothing runs under autocast: what is passed to the model is not cast to half either.
    """
    file = None if place is None else SourceFile.read(place[0])
    if file is None or place is None:
        return ""
    statement = file.statement_at(place[1])
    target = None if statement is None else _assigned(statement)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        target = function.value if isinstance(function, ast.Attribute) else None
    if statement is None:
        return ""
    if target is None or not _leave_out_casts(file, statement):
        return cast_elsewhere(file, statement, callers)
    name, margin = file.source(target), " " * statement.col_offset
    if dtype is None:
        _leave_out_casts_of_inputs(file, name)
        return file.patch()
    region = f"torch.autocast({_DEVICE}, dtype=torch.{dtype})"
    file.insert_after(statement, f"{margin}{name}.forward = {region}({name}.forward)")
    return file.patch()


def fp32_weights(made: Made) -> Iterator[str]:
    """Yield patches that keep weights in FP32: under autocast in the dtype that they had, and without it."""
    for dtype in (made.half_dtype, None) if made.half_dtype else (None,):
        yield keep_weights_in_fp32(made.half_weights, dtype, made.half_callers)


def cast_elsewhere(file: SourceFile, statement: ast.stmt, callers: tuple[Place, ...]) -> str:
    """Write float32 where the dtype of a cast comes from: its only assignment, or the caller's line."""
    names = [
        given.id
        for call in all_calls(statement)
        if called_name(call) == "to" or any(k.arg in _DTYPES for k in call.keywords)
        for given in (*call.args, *(k.value for k in call.keywords))
        if isinstance(given, ast.Name)
    ]
    for name in names:
        values = [
            node.value
            for node in ast.walk(file.tree)
            if isinstance(node, ast.Assign) and _assigns(node, name)
        ]
        if len(values) == 1 and _is_half(values[0], file):
            file.replace(values[0], "torch.float32")
            return file.patch()
        patch = _cast_by_caller(file, statement, name, callers)
        if patch:
            return patch
    return ""


def _cast_by_caller(
    file: SourceFile, statement: ast.stmt, name: str, callers: tuple[Place, ...]
) -> str:
    """Write float32 for an argument of the function around a statement, if its caller gave half."""
    function = file.function_at(statement.lineno)
    outer = SourceFile.read(callers[0][0]) if callers else None
    if function is None or outer is None:
        return ""
    order = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    order = order[1:] if order[:1] == ["self"] else order
    called = [c for c in calls_at(outer, callers[0][1]) if called_name(c) == function.name]
    for call in called:
        given = {k.arg: k.value for k in call.keywords} | dict(zip(order, call.args, strict=False))
        if name in given and _is_half(given[name], outer):
            outer.replace(given[name], "torch.float32")
            return outer.patch()
    return ""


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _leave_out_casts_of_inputs(file: SourceFile, name: str) -> None:
    """Leave out casts to half of what is passed to a model, or to its methods."""
    for call in all_calls(file.tree):
        called = file.source(call.func)
        if called != name and not called.startswith(f"{name}."):
            continue
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            if (
                isinstance(argument, ast.Call)
                and isinstance(argument.func, ast.Attribute)
                and _is_cast(argument, file)
            ):
                file.replace(argument, file.source(argument.func.value))


def widen_parameters(made: Made) -> str:
    """Make what an optimizer trains FP32, directly after the statement that makes it."""
    file, statement = read_statement(made.optimizer)
    if file is None or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    name, margin = file.source(statement.targets[0]), " " * statement.col_offset
    lines = (
        f"for group in {name}.param_groups:  # a GradScaler needs FP32 weights",
        '    for parameter in group["params"]:',
        "        parameter.data = parameter.data.float()",
    )
    file.insert_after(statement, "\n".join(margin + line for line in lines))
    return file.patch()


def call_in_fp32(place: Place, kernel: str) -> Iterator[str]:
    """Yield patches that cast the first argument of a call to FP32: first of the kernel's own function."""
    for index in count():
        file, statement = read_statement(place)  # anew: a file collects its edits
        calls = [] if statement is None else [call for call in all_calls(statement) if call.args]
        if file is None or index >= len(calls):
            return
        calls.sort(key=lambda call: not kernel.startswith(called_name(call) or "-"))
        given = calls[index].args[0]
        text = file.source(given)
        simple = isinstance(given, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        file.replace(given, f"{text}.float()" if simple else f"({text}).float()")
        yield file.patch()


def begin_with_scale(place: Place | None, scale: float) -> str:
    """Give a scaler an initial scale."""
    file = None if place is None else SourceFile.read(place[0])
    found = [] if file is None or place is None else calls_at(file, place[1])
    scalers = [call for call in found if called_name(call) == "GradScaler"]
    if file is None or len(scalers) != 1 or not _has_keywords(scalers[0]):
        return ""
    set_keyword(file, scalers[0], "init_scale", f"{scale!r}")
    return file.patch()


def change_keyword(place: Place, name: str, value: str) -> str:
    """Change a keyword argument that is given on a line."""
    file = SourceFile.read(place[0])
    found = [] if file is None else calls_at(file, place[1])
    given = [k for call in found for k in call.keywords if k.arg == name]
    if file is None or len(given) != 1:
        return ""
    file.replace(given[0].value, value)
    return file.patch()


def use_bfloat16(place: Place | None, script: str) -> str:
    """Let an FP16 region be one of BF16; or the setting of a framework."""
    return _change_autocast(place, script, "dtype", "torch.bfloat16", "bf16")


def switch_autocast_off(place: Place | None) -> str:
    """Let an FP16 region do nothing."""
    return _change_autocast(place, "", "enabled", "False", "")


def _change_autocast(place: Place | None, script: str, name: str, value: str, setting: str) -> str:
    file = None if place is None else SourceFile.read(place[0])
    if file is not None and place is not None:
        regions = [c for c in calls_at(file, place[1]) if called_name(c) == "autocast"]
        if len(regions) > 1 or (regions and not _has_keywords(regions[0])):
            return ""
        if regions:
            set_keyword(file, regions[0], name, value)
            return file.patch()
    return _set_precision(script, setting) if setting else ""


def _set_precision(script: str, value: str) -> str:
    """Change the setting of Lightning, Accelerate or transformers."""
    file = SourceFile.read(script) if script else None
    if file is None:
        return ""
    for call in all_calls(file.tree):
        first = call.args[0] if call.args else None
        plugin = called_name(call) == "MixedPrecision" and isinstance(first, ast.Constant)
        if plugin and first is not None and file.source(first).strip("'\"") == "16-mixed":
            devices = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "device")]
            given = ", ".join([f'"{value}-mixed"', *map(file.source, devices)])
            file.replace(call, f"{file.source(call.func)}({given})")  # which has no scaler
            continue
        for keyword in call.keywords:
            constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg in ("precision", "mixed_precision") and constant in ("fp16", "16-mixed"):
                file.replace(
                    keyword.value,
                    f'"{str(constant).replace("fp16", value).replace("16-", f"{value}-")}"',
                )
            elif keyword.arg == "fp16" and constant is True:
                set_keyword(file, call, value, "True", instead_of="fp16")
    return file.patch()


def make_island(made: Made) -> str:
    """Put a module in FP32, directly after the line that makes it, or one that holds it."""
    for one in made.modules:
        file, statement = read_statement(one.place)
        target = None if statement is None else _assigned(statement)
        if file is None or statement is None or target is None:
            continue
        name, margin = file.source(target), " " * statement.col_offset
        module = f'{name}.get_submodule("{one.path}")' if one.path else name
        file.insert_after(statement, f"{margin}halfguard.fp32_island({module})")
        patch = file.patch()
        if patch:
            return patch
    return ""


# -- pieces of a syntax tree


def set_keyword(
    file: SourceFile, call: ast.Call, name: str, value: str, *, instead_of: str = ""
) -> None:
    """Set a keyword argument of a call, or add it."""
    old = next((k for k in call.keywords if k.arg == (instead_of or name)), None)
    if old is not None and not instead_of:
        file.replace(old.value, value)
        return
    text = file.source(call)
    if old is not None:
        before = f"{old.arg}={file.source(old.value)}"
        file.replace(call, text.replace(before, f"{name}={value}", 1))
        return
    inside = text[:-1].rstrip()
    comma = "" if inside.endswith(("(", ",")) else ", "
    gap = " " if inside.endswith(",") else ""
    file.replace(call, f"{inside}{comma}{gap}{name}={value})")


def _has_keywords(call: ast.Call) -> bool:
    """Return whether all arguments but the device are keywords, so that one more is given once."""
    if not call.args:
        return True
    device = call.args[0]
    is_text = isinstance(device, ast.Constant) and isinstance(device.value, str)
    return len(call.args) == 1 and (is_text or isinstance(device, ast.Name | ast.Attribute))


def switch_on(place: Place | None, name: str, *, anywhere: bool) -> str:
    """Set a keyword argument that is False on a line, or anywhere in the file, to True."""
    file = None if place is None else SourceFile.read(place[0])
    if file is None or place is None:
        return ""
    for call in all_calls(file.tree) if anywhere else calls_at(file, place[1]):
        for keyword in call.keywords:
            is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == name and is_false:
                file.replace(keyword.value, "True")
    return file.patch()


def _leave_out_casts(file: SourceFile, statement: ast.stmt) -> bool:
    """Leave out casts to half inside a statement; return whether there was one."""
    found = False
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and _is_cast(node, file):
            file.replace(node, file.source(node.func.value))
            return True
        named = [keyword.value for keyword in node.keywords if keyword.arg in _DTYPES]
        for given in (*named, *(node.args if called_name(node) == "to" else ())):
            if _is_half(given, file):
                file.replace(given, "torch.float32")
                found = True
    return found


def _is_cast(call: ast.Call, file: SourceFile) -> bool:
    name = called_name(call)
    if name in ("half", "bfloat16"):
        return not call.args and not call.keywords
    given = [*call.args, *(k.value for k in call.keywords)]
    return name == "to" and len(given) == 1 and _is_half(given[0], file)


def _is_half(node: ast.expr, file: SourceFile) -> bool:
    return file.source(node).removeprefix("torch.") in HALF_NAMES


def _assigned(statement: ast.stmt) -> ast.expr | None:
    """Return the only target of an assignment, if it is a name or an attribute."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target if isinstance(target, ast.Name | ast.Attribute) else None
    return None
