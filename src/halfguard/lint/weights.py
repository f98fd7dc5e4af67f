"""Which calls make the parameters of a model half."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.model import Model
from halfguard.lint.module import Function
from halfguard.lint.names import argument, key, last_name, receiver
from halfguard.lint.precision import Precision

_MODEL = re.compile(r"(^|[._])(model|net|network|student|backbone|generator|discriminator|policy)$")
# What is only read from may be half: a teacher, a frozen encoder, a copy for inference.
_FROZEN = re.compile(r"teacher|frozen|ref|eval|infer|vae|text_encoder|ema|test|export", re.I)


def half_models_of(module: Model, functions: set[Function | None]) -> Iterator[ast.Call]:
    """Those of ``half_models`` that meet code of these functions: there, above, or in ``__init__``."""
    classes = {module.class_of(f) for f in functions if f is not None} - {None}
    for call in half_models(module):
        here = module.function_of(call)
        shared = here is not None and here.name == "__init__" and module.class_of(here) in classes
        if here is None or here in functions or shared or None in functions:
            yield call


def half_models(module: Model) -> Iterator[ast.Call]:
    """Calls by which a model that is trained here gets half parameters."""
    for call in module.calls("half", "to"):
        owner = receiver(call)
        if owner is None or not _is_model(module, owner) or _is_undone(module, call):
            continue
        half = last_name(call) == "half" and not call.args
        told = [module.dtype(a) for a in (*call.args, *(k.value for k in call.keywords))]
        if half or Precision.HALF in told:
            yield call
    for call in module.calls("from_pretrained"):
        dtype = argument(call, -1, "torch_dtype") or argument(call, -1, "dtype")
        if module.dtype(dtype) is Precision.HALF and _is_trained(module, call):
            yield call


def _is_model(module: Model, node: ast.expr) -> bool:
    name = key(node)
    if name:
        return (
            bool(_MODEL.search(name)) and not _FROZEN.search(name) and not _is_frozen(module, name)
        )
    # Model(...).half(): a class is called with a capital letter.
    return isinstance(node, ast.Call) and (
        last_name(node)[:1].isupper() and last_name(node).endswith(("Model", "Net", "Module"))
    )


def _is_undone(module: Model, call: ast.Call) -> bool:
    """``model.half().float()`` only rounds."""
    parent = module.parents.get(call)
    return isinstance(parent, ast.Attribute) and parent.attr in {"float", "eval", "to"}


def _is_trained(module: Model, call: ast.Call) -> bool:
    parent = module.parents.get(call)
    names = [key(t) for t in parent.targets] if isinstance(parent, ast.Assign) else []
    return any(_MODEL.search(n) and not _is_frozen(module, n) for n in names)


def _is_frozen(module: Model, name: str) -> bool:
    """Whether gradients are switched off for this model in the file."""
    return any(key(receiver(c) or c) == name for c in module.calls("requires_grad_"))
