"""Calls that make the parameters of a model float16, and whether optimizers keep the updates of such weights.

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
from halfguard.lint.expressions import (
    argument,
    boolean,
    called_name,
    has_keyword,
    name_of,
    receiver,
    string,
)
from halfguard.lint.match import Fix
from halfguard.lint.numeric_checks import underflows_half
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile, make_fix, remove, replace
from halfguard.lint.steps import EventKind

_MODEL = re.compile(r"(^|[._])(model|net|network|student|backbone|generator|discriminator|policy)$")
# Models that are not trained may be float16: a teacher, a frozen encoder, a copy for inference.
_CHAINED = {"cuda", "to", "train", "cpu", "requires_grad_"}
_TRAIN_FLAG = re.compile(r"\b(is_)?train(ing)?\b")
_INFERENCE_FLAG = re.compile(r"\b(eval|test|infer(ence)?|predict|demo|export|val)\w*", re.I)
TRAINING_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig")
_FROZEN = re.compile(r"teacher|frozen|ref|eval|infer|vae|text_encoder|ema|test|export", re.I)


def find_trained_half_models(file: PythonFile, *kinds: EventKind, fp16: bool) -> Iterator[ast.Call]:
    """Yield float16 models near a step with all these events, or near ``TrainingArguments(fp16=...)``.

    Near means in the same function, in a function that it calls, in ``__init__`` of its class, or at module
    level.
    """
    steps = [step for step in file.steps if all(step.has(kind) for kind in kinds)]
    functions = {file.function_of(event.node) for step in steps for event in step.events}
    functions |= {
        file.function_of(call)
        for call in file.calls(*TRAINING_ARGUMENTS)
        if boolean(training_argument(file, call, "fp16")) is fp16
    }
    if not functions:
        return
    classes = {file.class_of(f) for f in functions if f is not None} - {None}
    for call in find_half_models(file):
        here = file.function_of(call)
        shared = here is not None and here.name == "__init__" and file.class_of(here) in classes
        if (
            here is None
            or here in functions
            or shared
            or None in functions
            or any(
                file.local_function(c) is here and file.function_of(c) in functions
                for c in file.calls(here.name)
            )
        ):
            yield call


def training_argument(file: PythonFile, call: ast.Call, name: str) -> ast.expr | None:
    """Return a keyword of ``TrainingArguments``, also from ``TrainingArguments(**settings)``."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
        value = file.assigned_value(keyword.value) if keyword.arg is None else None
        if isinstance(value, ast.Dict):
            for key, entry in zip(value.keys, value.values, strict=True):
                if string(key) == name:
                    return entry
        elif isinstance(value, ast.Call) and called_name(value) == "dict":
            found = argument(value, -1, name)
            if found is not None:
                return found
    return None


def find_half_models(file: PythonFile) -> Iterator[ast.Call]:
    """Yield the calls that make a model float16, unless it is frozen, cast back or not trained."""
    for call in file.calls("half", "to"):
        owner = receiver(call)
        if owner is None or not _is_model(file, owner) or _is_undone(file, call):
            continue
        half = called_name(call) == "half" and not call.args
        dtypes = [file.dtype_precision(a) for a in (*call.args, *(k.value for k in call.keywords))]
        if (half or Precision.HALF in dtypes) and not _is_for_inference(file, call):
            yield call
    for call in file.calls("from_pretrained"):
        dtype = argument(call, -1, "torch_dtype") or argument(call, -1, "dtype")
        if file.dtype_precision(dtype) is not Precision.HALF or _is_for_inference(file, call):
            continue
        if _is_trained(file, call) and not _is_quantized(call):
            yield call


def keep_full(file: PythonFile, call: ast.Call) -> Fix | None:
    """Return the fix that keeps a model in float32; unsafe, because the model needs twice the memory."""
    for dtype in (*call.args, *(k.value for k in call.keywords)):
        if file.dtype_precision(dtype) is Precision.HALF:
            text = '"float32"' if isinstance(dtype, ast.Constant) else "torch.float32"
            return make_fix("unsafe", replace(file, dtype, text), imports=("torch",))
    owner, statement = receiver(call), file.statement_of(call)
    if called_name(call) != "half" or owner is None or statement is None:
        return None
    is_own_statement = isinstance(statement, ast.Expr) and statement.value is call
    if is_own_statement or (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and [name_of(t) for t in statement.targets] == [name_of(owner)]
    ):
        return make_fix("unsafe", remove(file, statement))
    return make_fix("unsafe", replace(file, call, file.text(owner)))


def _is_model(file: PythonFile, node: ast.expr) -> bool:
    # Model(...).cuda().half(): class names begin with a capital letter.
    while isinstance(node, ast.Call) and called_name(node) in _CHAINED:
        inner = receiver(node)
        if inner is None:
            return False
        node = inner
    name = name_of(node)
    if name:
        return bool(_MODEL.search(name)) and not _FROZEN.search(name) and not _is_frozen(file, name)
    if not isinstance(node, ast.Call):
        return False
    called = called_name(node)
    is_class = called[:1].isupper() and not called.endswith(("Tensor", "Variable", "Parameter"))
    return is_class and not _FROZEN.search(called) and _is_trained_name(file, node)


def _is_trained_name(file: PythonFile, node: ast.AST) -> bool:
    """Return whether a new model is assigned to a variable that is named like a trained model."""
    parent = file.statement_of(node)
    if isinstance(parent, ast.Return):
        return True
    names = [name_of(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    return any(n and not _FROZEN.search(n) and not _is_frozen(file, n) for n in names)


def _is_undone(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the call is followed by a cast back (which only rounds), or by ``eval``."""
    parent = file.parents.get(call)
    while isinstance(parent, ast.Attribute):
        if parent.attr in {"float", "eval"}:
            return True
        outer = file.parents.get(parent)
        if parent.attr == "to" and isinstance(outer, ast.Call):
            dtypes = [file.dtype_precision(a) for a in outer.args]
            if Precision.FULL in dtypes:
                return True
        parent = file.parents.get(outer) if isinstance(outer, ast.Call) else None
    return False


def _is_for_inference(file: PythonFile, call: ast.Call) -> bool:
    """Return whether a call runs only for inference: in such a function, or in a branch for it."""
    if file.is_inference(call):
        return True
    child: ast.AST = call
    for parent in file.ancestors(call):
        if isinstance(parent, ast.If):
            trains = bool(_TRAIN_FLAG.search(ast.unparse(parent.test)))
            in_body = child in parent.body
            negated = "not " in ast.unparse(parent.test)
            if trains and (in_body == negated):
                return True
            if in_body and not negated and _INFERENCE_FLAG.search(ast.unparse(parent.test)):
                return True
        child = parent
    return False


def _is_trained(file: PythonFile, call: ast.Call) -> bool:
    parent = file.parents.get(call)
    names = [name_of(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    return any(
        _MODEL.search(n) and not _FROZEN.search(n) and not _is_frozen(file, n) for n in names
    )


def _is_quantized(call: ast.Call) -> bool:
    """Return whether the weights are quantized; then the dtype is that of computations."""
    return has_keyword(call, "quantization_config", "load_in_8bit", "load_in_4bit")


def _is_frozen(file: PythonFile, name: str) -> bool:
    """Return whether the file calls ``requires_grad_`` or ``float`` on this model."""
    calls = file.calls("requires_grad_", "float")
    return any(name_of(receiver(c) or c) == name for c in calls)


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
