"""Optimizers that a file shows, and whether float16 weights keep their updates.

Below 1 the numbers of float16 are 2**-11 apart, so a change of less than 2**-12 is rounded away there. Adam
changes a weight by about a quarter of the learning rate if gradients are noisy. SGD multiplies the gradient,
so its rate says less: 0.01 keeps the updates of gradients above 0.02.

An optimizer that is written here is read. Of one that is imported only the name and the settings are known:
"master weights", "Kahan" and the like say that it keeps what rounding cuts off.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.cast_back import CastBack
from halfguard.lint.expressions import argument, boolean, called_name, name_of, receiver, string
from halfguard.lint.numeric_checks import underflows_half
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

_SGD_RATE, _ADAM_RATE = 0.01, 0.002
# In snake case: identifiers of what keeps small updates, and names that an optimizer with copies may have.
_KEEPING = re.compile(
    r"kahan|^compensat|stochastic_?round|fp16_?optim|"
    r"^masters?$|(^|_)masters?_?(weight|param|cop(y|ies)|tensor|value|data|fp32|float|p$|w$)"
)
_KEEPING_KIND = re.compile(r"(^|_)master_?\w*(adam|sgd|lion|lamb|adagrad|rms|optim)")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ADAM_LIKE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"}


def keeps_updates(file: PythonFile) -> bool:
    """Return whether no optimizer of this file loses updates to float16 weights, as far as it shows.

    It has a high learning rate, or its parameters are float32 (copies, or cast back), or it is written here
    and computes in float32 or adds up what rounding cuts off, or its name says so.
    """
    own = {
        node.name: node
        for node in file.nodes(ast.ClassDef)
        if any(file.full_name(base).endswith("Optimizer") for base in node.bases)
    }
    made = [c for c in file.nodes(ast.Call) if _is_torch_optimizer(file, c)]
    written = list(file.calls(*own))
    if not made and not written:
        stepped = {name_of(receiver(step)) for step in file.calls("step")} - {""}
        return any(_names_it(file, call, stepped) for call in file.nodes(ast.Call))
    cast = CastBack(file)
    if not all(
        _updates_copies(file, call) or cast.covers(call) or _is_high(file, call) for call in made
    ):
        return False
    classes = {called_name(call) for call in written}
    return all(_is_exact(own[name]) for name in classes) or _compensates(file)


def _is_torch_optimizer(file: PythonFile, call: ast.Call) -> bool:
    name = file.full_name(call.func)
    return name.startswith("torch.optim.") and "lr_scheduler" not in name


def _updates_copies(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the parameters of an optimizer are float32 copies, made in this file."""
    given = argument(call, 0, "params")
    return given is not None and file.precision(given) is Precision.FULL


def _is_exact(written: ast.ClassDef) -> bool:
    """Return whether an optimizer of this file computes in float32, or names what keeps small updates."""
    for node in ast.walk(written):
        if isinstance(node, ast.Call) and called_name(node) == "float" and receiver(node):
            return True
        if any(_says_so(name) for name in _identifiers(node)):
            return True
    return False


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node has itself; strings only where they are keys: ``state["master"]``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.keyword(arg=str(name)) | ast.Subscript(slice=ast.Constant(value=str(name))):
            yield name
        case ast.Dict(keys=keys):
            yield from (text for key in keys if (text := string(key)))
        case ast.Call(args=[first, *_]) if called_name(node) in {"setdefault", "get"}:
            yield string(first) or ""


def _says_so(name: str) -> bool:
    return bool(_KEEPING.search(_CAMEL.sub("_", name).lower()))


def _compensates(file: PythonFile) -> bool:
    """Return whether the file has Kahan's ``y - (t - p)`` of ``t = p + y``."""
    for node in file.nodes(ast.BinOp):
        for inner in (node.left, node.right):
            if not (isinstance(node.op, ast.Sub) and isinstance(inner, ast.BinOp)):
                continue
            total = file.assigned_value(inner.left) if isinstance(inner.op, ast.Sub) else None
            if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add):
                parts = {ast.dump(total.left), ast.dump(total.right)}
                if ast.dump(inner.right) in parts:
                    return True
    return False


def _names_it(file: PythonFile, call: ast.Call, stepped: set[str]) -> bool:
    """Return whether an optimizer from elsewhere, which is stepped, says that it keeps small updates."""
    parent = file.parents.get(call)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    if not any(name_of(target) in stepped for target in targets):
        return False
    kind = _CAMEL.sub("_", called_name(call)).lower()
    keywords = [k.arg for k in call.keywords if k.arg and boolean(k.value) is not False]
    says_so = _KEEPING_KIND.search(kind) or any(map(_says_so, [kind, *keywords]))
    return bool(says_so) and any("parameters()" in file.text(given) for given in call.args[:1])


def _is_high(file: PythonFile, call: ast.Call) -> bool:
    rate = file.constant(argument(call, 1, "lr"))
    if rate is None:
        return False
    if called_name(call) == "SGD":
        return rate >= _SGD_RATE
    eps = file.constant(argument(call, -1, "eps"))
    fused = boolean(argument(call, -1, "fused")) is True
    has_eps = fused or (eps is not None and not underflows_half(eps))
    return called_name(call) in _ADAM_LIKE and rate >= _ADAM_RATE and has_eps
