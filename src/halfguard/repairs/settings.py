"""Repairs of arguments: of scalers, regions and optimizers, and of what frameworks are asked for."""

from __future__ import annotations

import ast

from halfguard.repairs.casts import lift_casts
from halfguard.repairs.repair import Repair
from halfguard.repairs.source_file import Place, SourceFile, called_name


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


def has_only_device(call: ast.Call) -> bool:
    """Return whether all arguments but the device are keywords, so that one more is given once."""
    if not call.args:
        return True
    device = call.args[0]
    is_text = isinstance(device, ast.Constant) and isinstance(device.value, str)
    return len(call.args) == 1 and (is_text or isinstance(device, ast.Name | ast.Attribute))


@Repair
def change_keyword(file: SourceFile, line: int, name: str, value: str) -> None:
    """Change a keyword argument that is given on a line."""
    given = [k for call in file.calls_at(line) for k in call.keywords if k.arg == name]
    if len(given) == 1:
        file.replace(given[0].value, value)


@Repair
def add_keyword(
    file: SourceFile, line: int, name: str, value: str, functions: tuple[str, ...]
) -> None:
    """Set a keyword argument of the only call of some functions on a line."""
    found = file.only_call(line, *functions)
    if found is not None:
        set_keyword(file, found, name, value)


@Repair
def switch_on(file: SourceFile, line: int, name: str, *, anywhere: bool) -> None:
    """Set a keyword argument that is False on a line, or anywhere in the file, to True."""
    for call in file.calls if anywhere else file.calls_at(line):
        for keyword in call.keywords:
            is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == name and is_false:
                file.replace(keyword.value, "True")


@Repair
def initial_scale(file: SourceFile, line: int, scale: float) -> None:
    """Begin with a loss scale."""
    scaler = file.only_call(line, "GradScaler")
    if scaler is not None and has_only_device(scaler):
        set_keyword(file, scaler, "init_scale", f"{scale!r}")


@Repair
def scaler_device(file: SourceFile, line: int, device: str) -> None:
    """Give a scaler its device."""
    call = file.only_call(line, "GradScaler")
    if call is not None and call.args and isinstance(call.args[0], ast.Constant):
        file.replace(call.args[0], f'"{device}"')
    elif call is not None and not call.args:
        set_keyword(file, call, "device", f'"{device}"')


@Repair
def autocast_region(file: SourceFile, line: int, name: str, value: str) -> None:
    """Set an argument of the only autocast of a line."""
    region = file.only_call(line, "autocast")
    if region is not None and has_only_device(region):
        set_keyword(file, region, name, value)


def regions_of(path: str) -> tuple[Place, ...]:
    """Return the lines of a file that have an autocast."""
    file = SourceFile.read(path)
    calls = () if file is None else file.calls
    return tuple((path, call.lineno) for call in calls if called_name(call) == "autocast")


def is_region(place: Place | None) -> bool:
    """Return whether a line has an autocast."""
    file = None if place is None else SourceFile.read(place[0])
    calls = file.calls_at(place[1]) if file is not None and place is not None else []
    return any(called_name(call) == "autocast" for call in calls)


@Repair
def framework_precision(file: SourceFile, line: int, value: str) -> None:  # noqa: ARG001
    """Train in another 16-bit format, wherever the file asks for FP16."""
    for call in file.calls:
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
                name = str(constant).replace("fp16", value).replace("16-", f"{value}-")
                file.replace(keyword.value, f'"{name}"')
            elif keyword.arg == "fp16" and constant is True:
                set_keyword(file, call, value, "True", instead_of="fp16")


_FULL = {"precision": '"32-true"', "mixed_precision": '"no"', "fp16": "False", "bf16": "False"}
_FULL_ALREADY = ("32", "no", "False", "None")


@Repair
def no_half(file: SourceFile, line: int, casts: tuple[int, ...], *, regions: bool) -> None:
    """Make FP32 tensors on lines that cast to half; with ``regions``, autocast is off in the whole file."""
    for cast in dict.fromkeys((line, *casts)):
        lift_casts(file, cast)
    for call in file.calls if regions else ():
        function = file.source(call.func)
        if function in ("autocast", "torch.autocast") or function.endswith("amp.autocast"):
            set_keyword(file, call, "enabled", "False")
        for keyword in call.keywords:
            value = file.source(keyword.value).strip("'\"")
            if keyword.arg in _FULL and not value.startswith(_FULL_ALREADY):
                file.replace(keyword.value, _FULL[keyword.arg])


@Repair
def mixed_precision(file: SourceFile, line: int) -> None:  # noqa: ARG001
    """Keep the weights in FP32, wherever the file asks Lightning for 16-bit ones."""
    for keyword in (keyword for call in file.calls for keyword in call.keywords):
        constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg == "precision" and constant in ("bf16-true", "16-true"):
            file.replace(keyword.value, f'"{constant.replace("true", "mixed")}"')
            file.changed.append(keyword.value.lineno)


_CONFIGS = ("TrainingArguments", "SFTConfig", "DPOConfig", "RewardConfig")


@Repair
def optimizer_eps(file: SourceFile, line: int, optimizer: str, eps: str) -> None:
    """Give the optimizer of a class that is made on a line an eps."""
    direct = [call for call in file.calls_at(line) if called_name(call) == optimizer]
    if direct:
        if len(direct) == 1:
            set_keyword(file, direct[0], "eps", eps)
        return
    arguments = [call for call in file.calls if called_name(call).endswith(_CONFIGS)]
    if len(arguments) == 1:
        set_keyword(file, arguments[0], "adam_epsilon", eps)


_RATES = ("lr", "learning_rate", "--lr", "--learning-rate", "--learning_rate")


@Repair
def learning_rate(file: SourceFile, line: int, rate: float, part: float) -> None:  # noqa: ARG001
    """Multiply the only number of a file that is named as a learning rate and has its value."""
    named = [
        (keyword.arg or "", keyword.value)
        for call in file.calls
        for keyword in call.keywords
        if called_name(call) != "add_argument"
    ]
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.append((node.targets[0].id, node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            named.append((file.source(node.target), node.value))
        elif isinstance(node, ast.arguments):
            given = reversed((*node.posonlyargs, *node.args))
            named += [(a.arg, d) for a, d in zip(given, reversed(node.defaults), strict=False)]
        elif isinstance(node, ast.Call) and called_name(node) == "add_argument" and node.args:
            defaults = (k.value for k in node.keywords if k.arg == "default")
            named += [(file.source(node.args[0]).strip("'\""), value) for value in defaults]
    found = [
        value
        for name, value in named
        if name.lower() in _RATES and isinstance(value, ast.Constant) and value.value == rate
    ]
    if len(found) == 1:
        file.replace(found[0], f"{rate * part:g}")
        file.changed.append(found[0].lineno)


@Repair
def anomaly_off(file: SourceFile, line: int) -> None:  # noqa: ARG001
    """Switch anomaly detection off."""
    for call in file.calls:
        given = [k for k in call.keywords if k.arg == "detect_anomaly"]
        given = [k for k in given if isinstance(k.value, ast.Constant) and k.value.value is True]
        if given:
            file.replace(given[0].value, "False")
        elif called_name(call) == "set_detect_anomaly" and call.args:
            file.replace(call.args[0], "False")
        elif called_name(call) == "detect_anomaly" and not call.args and not call.keywords:
            file.replace(call, f"{file.source(call.func)}(check_nan=False)")
        else:
            continue
        file.changed.append(given[0].value.lineno if given else call.lineno)


@Repair
def add_to_prepare(file: SourceFile, line: int) -> None:
    """Prepare what is stepped on a line."""
    found = file.sole_call(line, "step")
    name = "" if found is None else file.owner_of(found[1])
    for node in ast.walk(file.tree) if name else ():
        value = node.value if isinstance(node, ast.Assign) else None
        if not isinstance(value, ast.Call) or not isinstance(node, ast.Assign):
            continue
        given = [file.source(argument) for argument in value.args]
        if called_name(value) == "prepare" and name not in given and len(node.targets) == 1:
            targets = node.targets[0]
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            left = ", ".join([*map(file.source, names), name])
            function = file.source(value.func)
            file.replace(node, f"{left} = {function}({', '.join([*given, name])})")
            file.changed.append(node.lineno)
            return
