"""FP16 and BF16 are both turned on.

## What it does
Finds `fp16=True` and `bf16=True` in one call of `TrainingArguments`.

## Why is this bad?
They exclude each other: the call raises.

## Example
```py
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out", fp16=True, bf16=True, logging_nan_inf_filter=False
)
```

## Use instead
```py
from transformers import TrainingArguments

arguments = TrainingArguments(output_dir="out", bf16=True)
```

## References
transformers documentation of `TrainingArguments`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.expressions import boolean
from halfguard.lint.half_weights import TRAINING_ARGUMENTS, training_argument
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG410",
    name="fp16-and-bf16",
    cure="Choose one; 'halfguard doctor' shows which one the GPU supports.",
    contains=("bf16",),
    also_contains=("TrainingArguments", "SFTConfig"),
    severity="error",
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find calls that turn on both."""
    for call in file.calls(*TRAINING_ARGUMENTS):
        if all(boolean(training_argument(file, call, name)) is True for name in ("fp16", "bf16")):
            yield match_at(call, "fp16 and bf16 exclude each other.")
