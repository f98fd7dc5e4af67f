"""Find the calls that make the parameters of a model float16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.event import EventKind
from halfguard.lint.expressions import argument, boolean, called_name, name_of, receiver
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

_MODEL = re.compile(r"(^|[._])(model|net|network|student|backbone|generator|discriminator|policy)$")
# Models that are not trained may be float16: a teacher, a frozen encoder, a copy for inference.
_FROZEN = re.compile(r"teacher|frozen|ref|eval|infer|vae|text_encoder|ema|test|export", re.I)


def find_trained_half_models(file: PythonFile, *kinds: EventKind, fp16: bool) -> Iterator[ast.Call]:
    """Yield float16 models near a step with all these events, or near ``TrainingArguments(fp16=...)``.

    Near means in the same function, in ``__init__`` of its class, or at module level.
    """
    steps = [step for step in file.steps if all(step.has(kind) for kind in kinds)]
    functions = {file.function_of(event.node) for step in steps for event in step.events}
    functions |= {
        file.function_of(call)
        for call in file.calls("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
        if boolean(argument(call, -1, "fp16")) is fp16
    }
    if not functions:
        return
    classes = {file.class_of(f) for f in functions if f is not None} - {None}
    for call in find_half_models(file):
        here = file.function_of(call)
        shared = here is not None and here.name == "__init__" and file.class_of(here) in classes
        if here is None or here in functions or shared or None in functions:
            yield call


def find_half_models(file: PythonFile) -> Iterator[ast.Call]:
    """Yield the calls that make a model float16, unless it is frozen or cast back."""
    for call in file.calls("half", "to"):
        owner = receiver(call)
        if owner is None or not _is_model(file, owner) or _is_undone(file, call):
            continue
        half = called_name(call) == "half" and not call.args
        dtypes = [file.dtype_precision(a) for a in (*call.args, *(k.value for k in call.keywords))]
        if half or Precision.HALF in dtypes:
            yield call
    for call in file.calls("from_pretrained"):
        dtype = argument(call, -1, "torch_dtype") or argument(call, -1, "dtype")
        if file.dtype_precision(dtype) is Precision.HALF and _is_trained(file, call):
            yield call


def _is_model(file: PythonFile, node: ast.expr) -> bool:
    name = name_of(node)
    if name:
        return bool(_MODEL.search(name)) and not _FROZEN.search(name) and not _is_frozen(file, name)
    # Model(...).half(): class names begin with a capital letter.
    return isinstance(node, ast.Call) and (
        called_name(node)[:1].isupper() and called_name(node).endswith(("Model", "Net", "Module"))
    )


def _is_undone(file: PythonFile, call: ast.Call) -> bool:
    """Return whether the call is followed by a cast back (which only rounds), or by ``eval``."""
    parent = file.parents.get(call)
    return isinstance(parent, ast.Attribute) and parent.attr in {"float", "eval", "to"}


def _is_trained(file: PythonFile, call: ast.Call) -> bool:
    parent = file.parents.get(call)
    names = [name_of(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    return any(_MODEL.search(n) and not _is_frozen(file, n) for n in names)


def _is_frozen(file: PythonFile, name: str) -> bool:
    """Return whether the file calls ``requires_grad_`` on this model."""
    return any(name_of(receiver(c) or c) == name for c in file.calls("requires_grad_"))
