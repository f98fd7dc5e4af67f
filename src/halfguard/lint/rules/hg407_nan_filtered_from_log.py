"""The log of a 16-bit run does not show NaN.

## What it does
Finds `TrainingArguments(fp16=True)` without `logging_nan_inf_filter=False`.

## Why is this bad?
By default the trainer replaces every loss that is not finite with the running mean before it logs it. The
loss curve looks clean, but the run is corrupt.

## Example
```py
from transformers import TrainingArguments

arguments = TrainingArguments(output_dir="out", fp16=True)
```

## Use instead
```py
from transformers import TrainingArguments

arguments = TrainingArguments(output_dir="out", fp16=True, logging_nan_inf_filter=False)
```

## Fix safety
Unsafe: dashboards will then show NaN.

## References
trl#6702.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.expressions import boolean, has_keyword
from halfguard.lint.half_weights import TRAINING_ARGUMENTS, training_argument
from halfguard.lint.match import Edit, Fix, Match, Meta, Span, match_at
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG407",
    name="nan-filtered-from-log",
    cure="Pass logging_nan_inf_filter=False.",
    contains=("TrainingArguments", "SFTConfig"),
    fix="unsafe",
    preview=True,
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find arguments that turn on FP16 and keep the filter."""
    for call in file.calls(*TRAINING_ARGUMENTS):
        if boolean(training_argument(file, call, "fp16")) is not True:
            continue
        if boolean(training_argument(file, call, "logging_nan_inf_filter")) is not False:
            if has_keyword(call, "logging_nan_inf_filter"):
                continue
            end = Span.after(call.keywords[-1].value)
            edit = Edit(end, ", logging_nan_inf_filter=False")
            message = "A NaN loss is replaced before it is logged: the curve will look clean."
            yield match_at(call, message, Fix("unsafe", (edit,)))
