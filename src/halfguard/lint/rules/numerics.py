"""Operations that leave the range of float16: logarithms, squares, losses, averages, positions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, called_name, name_of, number, receiver
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import rule
from halfguard.lint.rules.constants import underflows_half
from halfguard.lint.values import module_class, origin_of
from halfguard.repairs.source_file import SourceFile
from halfguard.repairs.stable_composition import patch_line

_LOGS = ("torch.log(", ".log()")


@rule("HG104", "sigmoid", "Sigmoid", also=_LOGS, in_half=True)
def check_log_sigmoid(file: PythonFile) -> Iterator[Match]:
    """Find logarithms of sigmoids, or of one minus a sigmoid."""
    for call, origin, has_eps, complement in _logarithms(file):
        name = called_name(origin)
        is_function = name == "sigmoid" and (file.is_torch_call(origin) or not origin.args)
        if file.local_function(origin) is not None or not (
            is_function or (module_class(file, origin) == "Sigmoid" and len(origin.args) == 1)
        ):
            continue
        # A sigmoid is 0 below -17 in float16, but only below -88 in float32, which few scores reach.
        if file.may_be_half(origin) or (file.project.lone and not has_eps):
            inner, sign = ("1 - sigmoid(x)", "-") if complement else ("sigmoid(x)", "")
            message = (
                f"log({inner}) is -Inf where the sigmoid rounds to 0; logsigmoid({sign}x) is exact."
            )
            yield match_at(call, message, _stable(file, call, has_eps))


@rule("HG105", "softmax", "Softmax", also=_LOGS, in_half=True)
def check_log_softmax(file: PythonFile) -> Iterator[Match]:
    """Find logarithms of softmaxes."""
    for call, origin, has_eps, complement in _logarithms(file):
        is_softmax = called_name(origin) == "softmax" or module_class(file, origin) == "Softmax"
        if complement or not is_softmax:
            continue
        # In float32 a probability underflows only for scores that differ by 103 or more.
        if file.may_be_half(origin) or (file.project.lone and not has_eps):
            message = (
                "log(softmax(x)) is -Inf where a probability underflows; log_softmax(x) is finite."
            )
            yield match_at(call, message, _stable(file, call, has_eps))


def _logarithms(file: PythonFile) -> Iterator[tuple[ast.Call, ast.Call, bool, bool]]:
    """Yield logarithms, the call that computed their operand, and if an eps or ``1 -`` is in between."""
    for call in file.calls("log"):
        is_torch = file.full_name(call.func) == "torch.log"
        inner = argument(call, 0, "input") if is_torch else None if call.args else receiver(call)
        if inner is None or file.is_inference(call) or _is_reference(file, call):
            continue
        value = file.assigned_value(inner)
        operand = value if isinstance(value, ast.BinOp) else inner
        has_eps = complement = False
        if isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Add):
            for side, other in ((operand.left, operand.right), (operand.right, operand.left)):
                if underflows_half(file.constant(other)):
                    operand, has_eps = side, True
                    break
        is_difference = isinstance(operand, ast.BinOp) and isinstance(operand.op, ast.Sub)
        if is_difference and isinstance(operand, ast.BinOp) and number(operand.left) == 1:
            operand, complement = operand.right, True
        origin = origin_of(file, operand)
        if isinstance(origin, ast.Call):
            yield call, origin, has_eps, complement


def _is_reference(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a node is in code named a reference, which is simple on purpose."""
    names = (getattr(p, "name", None) or getattr(p, "arg", None) for p in file.ancestors(node))
    return any(
        isinstance(n, str) and ("reference" in n or n.lstrip("_")[:4] == "ref_") for n in names
    )


def _stable(file: PythonFile, call: ast.Call, has_eps: bool) -> Fix | None:
    """Write the stable form; an eps limited the result, and goes."""

    def edit(source: SourceFile) -> None:
        patch_line(source, call.lineno, only=call)

    return file.fix("unsafe" if has_eps else "safe", edit)


@rule("HG107", "binary_cross_entropy", "BCELoss", also=("autocast",))
def check_bce(file: PythonFile) -> Iterator[Match]:
    """Find binary cross-entropy inside autocast regions."""
    for call in file.calls("binary_cross_entropy"):
        if _is_lowered(file, call):
            yield match_at(
                call, "binary_cross_entropy is unsafe under autocast.", _logits(file, call)
            )
    imported = file.aliases.get("BCELoss", "torch.")
    for variable in file.constructed("BCELoss") if imported.startswith("torch.") else ():
        for call in file.calls_of(variable):
            # Another function may use the same name for another loss.
            if module_class(file, call) == "BCELoss" and _is_lowered(file, call):
                yield match_at(call, f"{variable} is a BCELoss, which is unsafe under autocast.")


def _is_lowered(file: PythonFile, call: ast.Call) -> bool:
    region = file.autocast.around(call)
    if region is None or region.enabled is False or file.is_inference(call):
        return False
    return not call.args or file.precision(call.args[0]) is not Precision.FULL


def _logits(file: PythonFile, call: ast.Call) -> Fix | None:
    first = argument(call, 0, "input")
    if not isinstance(first, ast.Call) or called_name(first) != "sigmoid":
        return None
    inner = argument(first, 0, "input") if first.args else receiver(first)
    if inner is None or argument(call, 2, "weight") is not None:
        return None

    def edit(source: SourceFile) -> None:
        source.append(call.func, "_with_logits")
        source.replace(first, source.source(inner))

    return file.fix("safe", edit)


# Losses of torch that are float32 if one of their arguments is.
_PROMOTING = re.compile(
    r"^(mse|l1|smooth_?l1|bce_?with_?logits|binary_cross_entropy|kl_?div)", re.I
)
_LOSS = re.compile(r"loss|criteri(on|a)|objective", re.I)
_MODEL = re.compile(
    r"(^|[._])(model|net|network|student|backbone|generator|discriminator|unet|gen|disc|net_?[a-z0-9]{1,3}"
    r"|model_\w+|\w+_(model|net))$",
    re.I,
)


@rule("HG115", "autocast", also=("caler",), in_half=True)
def check_losses(file: PythonFile) -> Iterator[Match]:
    """Find losses of float16 outputs outside of autocast, the first one of each function."""
    if not file.roles.has_scaler or not file.autocast.by_node:
        return
    trained = {file.function_of(e.node) for s in file.steps for e in s.find("scaled_backward")}
    for call in file.nodes(ast.Call):
        function = file.function_of(call)
        made = file.last_assignment(call.func) if function in trained else None
        loss = made.value if made and isinstance(made.value, ast.Call) else call
        is_loss = any(_LOSS.search(called_name(one)) for one in (call, loss))
        if function not in trained or not is_loss or file.is_inference(call):
            continue
        if file.project.casting_losses and not file.is_torch_call(loss):
            continue
        region = file.autocast.directly_around(call)
        if (region is not None and region.enabled is not False) or _promotes(file, call, loss):
            continue
        output = next((a for a in call.args if _is_half_output(file, a)), None)
        own = file.local_function(call)  # which may cast its inputs
        casts = own is not None and ".float()" in ast.unparse(own)
        is_kept = isinstance(file.statement_of(call), ast.Assign | ast.AugAssign)
        if output is not None and is_kept and not casts:
            trained.discard(function)
            message = (
                f"{file.text(output)} and this loss are float16 because autocast is disabled here. Its "
                "gradient overflows at a scale of 65,536."
            )
            yield match_at(call, message)


def _promotes(file: PythonFile, call: ast.Call, loss: ast.Call) -> bool:
    """Return whether a float32 argument makes the loss float32; targets from a loader are float32."""
    if any(file.precision(a) is Precision.FULL for a in call.args):
        return True
    if loss is not call and any(_MODEL.search(name_of(a)) for a in loss.args):
        return True  # a loss that is made for one model has tensors of its own, such as anchors
    if not (file.is_torch_call(loss) and _PROMOTING.search(called_name(loss))):
        return False
    return not all(_is_half_output(file, a, single=True) for a in call.args[:2])


def _is_half_output(file: PythonFile, node: ast.expr, *, single: bool = False) -> bool:
    """Return whether a value is the output of a model that ran under float16 autocast.

    A single output is all that the model returns; one of several may be float32.
    """
    node = node.value if isinstance(node, ast.Subscript) else node
    assigned = file.last_assignment(node) if isinstance(node, ast.Name) else None
    made = (assigned.value or (None if single else assigned.container)) if assigned else None
    if not isinstance(made, ast.Call) or not _MODEL.search(name_of(made.func)):
        return False
    region = file.autocast.directly_around(made)
    is_on = region is not None and region.enabled is not False
    return is_on and file.autocast.lowers_to(made) == "float16" and not file.is_inference(made)


@rule("HG213", "autograd.grad", "import grad", also=("caler",))
def check_penalties(file: PythonFile) -> Iterator[Match]:
    """Find gradients of a scaled loss that are differentiated again as they are."""
    for call in file.calls("grad"):
        if file.full_name(call.func) != "torch.autograd.grad":
            continue
        outputs = argument(call, 0, "outputs")
        if boolean(argument(call, 4, "create_graph")) is not True or not _is_scaled(file, outputs):
            continue
        function = file.function_of(call)
        around = file.source.text if function is None else file.text(function)
        if not re.search(r"get_scale|inv_?scale|unscale|\b_scale\b", around, re.I):
            message = "These gradients are multiplied by the loss scale, and so is the penalty."
            yield match_at(call, message)


def _is_scaled(file: PythonFile, node: ast.AST | None) -> bool:
    """Return whether an expression is ``scaler.scale(loss)``, directly, in a list or by a name."""
    if isinstance(node, ast.Tuple | ast.List):
        return any(_is_scaled(file, part) for part in node.elts)
    value = file.assigned_value(node)
    if not isinstance(value, ast.Call) or called_name(value) != "scale":
        return False
    return file.roles.is_scaler(receiver(value))
