"""A scaler is used with a model whose parameters are float16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, name_of
from halfguard.lint.half_weights import find_trained_half_models, keep_full
from halfguard.lint.match import Fix, Match, Meta, match_at
from halfguard.lint.python_file import PythonFile, insert_after, make_fix

META = Meta(
    contains=("half(", "float16", "torch.half"),
    also_contains=("step(", "TrainingArguments", "SFTConfig"),
)
# Trainable parameters are cast back, or have float32 copies.
_TRAINED_IN_FULL = re.compile(
    r"MasterWeights|upcast_trainable|cast_training_params|\bp(aram)?\.data\s*=\s*p(aram)?\.data\.float"
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find float16 models that are trained with a scaler."""
    if _TRAINED_IN_FULL.search(file.source.text):
        return
    with_peft = file.imports("peft")
    if with_peft and not _peft_trains_half(file):
        return
    message = "The scaler raises on float16 parameters: it cannot unscale their gradients."
    for call in find_trained_half_models(file, "scaler_step", fp16=True):
        fix = _upcast_trained(file) if with_peft else keep_full(file, call)
        yield match_at(call, message, fix)


def _peft_trains_half(file: PythonFile) -> bool:
    """Return whether peft leaves trained parameters in the dtype of the base."""
    kept = (argument(call, -1, "modules_to_save") for call in file.calls("LoraConfig"))
    if any(isinstance(value, ast.List | ast.Tuple) and value.elts for value in kept):
        return True
    return any(
        boolean(argument(call, -1, "autocast_adapter_dtype")) is False
        for call in file.calls("get_peft_model")
    )


def _upcast_trained(file: PythonFile) -> Fix | None:
    """Convert what is trained to float32, below the one statement that adds the adapters."""
    statements = [file.statement_of(call) for call in file.calls("get_peft_model")]
    if len(statements) != 1 or not isinstance(statement := statements[0], ast.Assign):
        return None
    name = name_of(statement.targets[0])
    if not name or len(statement.targets) > 1:
        return None
    text = f"halfguard.upcast_trainable({name})"
    return make_fix("unsafe", insert_after(file, statement, text), imports=("halfguard",))
