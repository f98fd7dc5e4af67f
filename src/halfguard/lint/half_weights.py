"""Calls that make the parameters of a model float16, and whether the file may keep updates of such weights.

Below 1 the numbers of float16 are 2**-11 apart, so a change of less than 2**-12 is rounded away there. Adam
changes a weight by about a quarter of the learning rate if gradients are noisy. ``hg.doctor`` measures
whether updates are lost (HG402): here a word about copies, casts or compensation is enough for silence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

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


# What may keep the updates that float16 rounds away: copies, casts back, Kahan sums, random rounding.
_KEEPING = re.compile(
    r"master|kahan|compensat|stochastic|fp16_?optim|upcast|cast_training|\.data\s*=[^=]|Optimizer\):",
    re.IGNORECASE,
)
_SGD_RATE = 0.01  # keeps the updates of gradients above 0.02
_ADAM_RATE = 0.002


def may_keep_updates(file: PythonFile) -> bool:
    """Return whether anything in the file may keep small updates of float16 weights."""
    made = [c for c in file.nodes(ast.Call) if file.full_name(c.func).startswith("torch.optim.")]
    return mentions_copies(file) or any(_is_safe(file, call) for call in made)


def mentions_copies(file: PythonFile) -> bool:
    """Return whether the file mentions float32 copies, a cast back, or sums of what rounding cuts off."""
    return bool(_KEEPING.search(file.source.text))


def _is_safe(file: PythonFile, call: ast.Call) -> bool:
    """Return whether an optimizer has float32 copies of the parameters, or a high learning rate."""
    given, rate = argument(call, 0, "params"), file.constant(argument(call, 1, "lr"))
    if given is not None and file.precision(given) is Precision.FULL:
        return True
    if called_name(call) == "SGD":
        return rate is not None and rate >= _SGD_RATE
    eps = file.constant(argument(call, -1, "eps"))
    fused = boolean(argument(call, -1, "fused")) is True
    has_eps = fused or (eps is not None and not underflows_half(eps))
    return rate is not None and rate >= _ADAM_RATE and has_eps
