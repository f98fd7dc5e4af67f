"""FP16 is used without gradient clipping.

## What it does
Finds `TrainingArguments(fp16=True)` with a `max_grad_norm` of 0, and a Lightning `Trainer` in 16-mixed
without `gradient_clip_val`.

## Why is this bad?
A single large gradient that is still finite passes the scaler's check and changes the weights so much that
the next forward pass leaves the range of float16. Clipping limits it.

## Example
```py
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out", fp16=True, max_grad_norm=0.0, logging_nan_inf_filter=False
)
```

## Use instead
```py
from transformers import TrainingArguments

arguments = TrainingArguments(
    output_dir="out", fp16=True, max_grad_norm=1.0, logging_nan_inf_filter=False
)
```

## References
A gradient of 10 stays 10 with a clip value of 50: a higher value clips less.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.expressions import argument, boolean, has_keyword, string
from halfguard.lint.half_weights import TRAINING_ARGUMENTS, training_argument
from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG411",
    name="fp16-without-clipping",
    cure="Clip the gradient norm; 1.0 is a good start.",
    contains=("max_grad_norm", "16-mixed"),
    preview=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find trainers in FP16 that do not clip."""
    for call in file.calls(*TRAINING_ARGUMENTS):
        off = file.constant(training_argument(file, call, "max_grad_norm")) == 0
        if off and boolean(training_argument(file, call, "fp16")) is True:
            yield match_at(call, "FP16 without gradient clipping: max_grad_norm is 0.")
    for call in file.calls("Trainer"):
        half = string(argument(call, -1, "precision")) in {"16-mixed", "16"}
        if half and not has_keyword(call, "gradient_clip_val"):
            yield match_at(call, "FP16 without gradient clipping: gradient_clip_val is not set.")
