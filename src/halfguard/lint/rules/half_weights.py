"""Models whose parameters are float16 while a scaler trains them.

Without a scaler, their updates may be lost. A file shows a cast, but not what its optimizer does: doctor has
the live optimizer, and measures that (HG402).
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
)
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile
from halfguard.lint.rule import rule
from halfguard.lint.rules.scaling import settings_of
from halfguard.repairs.fp32_weights import fp32_weights
from halfguard.repairs.source_file import SourceFile

_MODEL = re.compile(r"(^|[._])(model|net|network|student|backbone|generator|discriminator|policy)$")
# Models that are not trained may be float16: a teacher, a frozen encoder, a copy for inference.
_FROZEN = re.compile(r"teacher|frozen|ref|eval|infer|vae|text_encoder|ema|test|export", re.I)
_CHAINED = {"cuda", "to", "train", "cpu", "requires_grad_"}
_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig")
_HALF = ("half(", "float16", "torch.half")
_STEPS = ("step(", "TrainingArguments", "SFTConfig")


@rule("HG401", *_HALF, also=_STEPS)
def check_scaler(file: PythonFile) -> Iterator[Match]:
    """Find float16 models that are trained with a scaler."""
    text = r"MasterWeights|upcast_trainable|cast_training_params|\bp(aram)?\.data\s*=\s*p(aram)?\.data\.float"
    if re.search(text, file.source.text) or _trains_adapters(file):
        return
    for call in _trained_half_models(file):
        fix = _upcast_trained(file) if file.imports("peft") else _keep_full(file, call)
        message = (
            "The scaler raises an error for float16 parameters: it cannot unscale their gradients."
        )
        yield match_at(call, message, fix)


def _trains_adapters(file: PythonFile) -> bool:
    """Return whether peft trains float32 adapters, and nothing in the dtype of the base."""
    if not file.imports("peft"):
        return False
    kept = (argument(call, -1, "modules_to_save") for call in file.calls("LoraConfig"))
    if any(isinstance(value, ast.List | ast.Tuple) and value.elts for value in kept):
        return False
    casts = (argument(c, -1, "autocast_adapter_dtype") for c in file.calls("get_peft_model"))
    merges = any(True for _ in file.calls("merge_and_unload"))
    return not merges and all(boolean(value) is not False for value in casts)


def _trained_half_models(file: PythonFile) -> Iterator[ast.Call]:
    """Yield float16 models near a step of a scaler, or near ``TrainingArguments(fp16=True)``.

    Near means in the same function, in a function that it calls, in ``__init__`` of its class, or at module
    level.
    """
    steps = [step for step in file.steps if step.has("scaler_step")]
    functions = {file.function_of(event.node) for step in steps for event in step.events}
    functions |= {
        file.function_of(call)
        for call in file.calls(*_ARGUMENTS)
        if boolean(dict(settings_of(file, call)).get("fp16")) is True
    }
    classes = {file.class_of(f) for f in functions if f is not None} - {None}
    for call in _half_models(file) if functions else ():
        here = file.function_of(call)
        shared = here is not None and here.name == "__init__" and file.class_of(here) in classes
        callers = file.callers_of(here) if here is not None else ()
        called = any(file.function_of(caller) in functions for caller in callers)
        if here in functions | {None} or shared or None in functions or called:
            yield call


def _half_models(file: PythonFile) -> Iterator[ast.Call]:
    """Yield the calls that make a model float16, unless it is frozen, cast back or not trained."""
    for call in file.calls("half", "to"):
        owner = receiver(call)
        if owner is None or not _is_model(file, owner) or _is_undone(file, call):
            continue
        half = called_name(call) == "half" and not call.args
        dtypes = [file.dtype_precision(a) for a in (*call.args, *(k.value for k in call.keywords))]
        if (half or Precision.HALF in dtypes) and not file.is_inference(call):
            yield call
    for call in file.calls("from_pretrained"):
        dtype = argument(call, -1, "torch_dtype") or argument(call, -1, "dtype")
        if file.dtype_precision(dtype) is not Precision.HALF or file.is_inference(call):
            continue
        # The dtype of quantized weights is that of computations.
        quantized = has_keyword(call, "quantization_config", "load_in_8bit", "load_in_4bit")
        if not quantized and any(_MODEL.search(n) for n in _assigned_names(file, call)):
            yield call


def _is_model(file: PythonFile, node: ast.expr) -> bool:
    # Model(...).cuda().half(): class names begin with a capital letter.
    while isinstance(node, ast.Call) and called_name(node) in _CHAINED:
        inner = receiver(node)
        if inner is None:
            return False
        node = inner
    name = name_of(node)
    if name:
        return bool(_MODEL.search(name)) and _is_trained(file, name)
    called = called_name(node) if isinstance(node, ast.Call) else ""
    is_class = called[:1].isupper() and not called.endswith(("Tensor", "Variable", "Parameter"))
    returned = isinstance(file.statement_of(node), ast.Return)
    return is_class and not _FROZEN.search(called) and bool(returned or _assigned_names(file, node))


def _assigned_names(file: PythonFile, node: ast.AST) -> list[str]:
    """Return the names of trained models that the statement of a node assigns."""
    parent = file.statement_of(node)
    names = [name_of(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    return [n for n in names if n and _is_trained(file, n)]


def _is_trained(file: PythonFile, name: str) -> bool:
    """Return whether a model is not named as frozen, and is neither frozen nor cast back in the file."""
    calls = file.calls("requires_grad_", "float")
    return not _FROZEN.search(name) and all(name_of(receiver(c) or c) != name for c in calls)


def _is_undone(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the call is followed by a cast back (which only rounds), or by ``eval``."""
    parent = file.parents.get(call)
    while isinstance(parent, ast.Attribute):
        outer = file.parents.get(parent)
        given = outer.args if isinstance(outer, ast.Call) and parent.attr == "to" else []
        full = any(file.dtype_precision(a) is Precision.FULL for a in given)
        if full or parent.attr in {"float", "eval"}:
            return True
        parent = file.parents.get(outer) if isinstance(outer, ast.Call) else None
    return False


def _keep_full(file: PythonFile, call: ast.Call) -> Fix | None:
    """Keep a model in float32; unsafe, because it needs twice the memory."""
    return file.fix("unsafe", fp32_weights.edit, call.lineno, None, (), False)


def _upcast_trained(file: PythonFile) -> Fix | None:
    """Convert what is trained to float32, below the one statement that adds the adapters."""
    statements = [file.statement_of(call) for call in file.calls("get_peft_model")]
    if len(statements) != 1 or not isinstance(statement := statements[0], ast.Assign):
        return None
    name = name_of(statement.targets[0])
    if not name or len(statement.targets) > 1:
        return None

    def edit(source: SourceFile) -> None:
        margin = " " * statement.col_offset
        source.insert_after(statement, f"{margin}halfguard.upcast_trainable({name})")

    return file.fix("unsafe", edit)
