"""The log of a 16-bit run leaves NaN out.

## What it does
Finds `TrainingArguments(fp16=True)` without `logging_nan_inf_filter=False`.

## Why is this bad?
By default the trainer replaces every loss that is not finite by the running mean before it logs it. The
curve is clean, and the run is corrupt.

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
Unsafe: dashboards will show NaN where there is one.

## References
trl#6702.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Edit, Fix, Match, Span, match_at
from halfguard.lint.model import Model
from halfguard.lint.names import argument, boolean, has_keyword
from halfguard.lint.rule import Meta

META = Meta(
    code="HG407",
    name="nan-filtered-from-log",
    cure="Pass logging_nan_inf_filter=False.",
    words=("TrainingArguments", "SFTConfig"),
    fix="unsafe",
)


def check(module: Model) -> Iterator[Match]:
    """Find arguments that switch FP16 on and leave the filter on."""
    for call in module.calls("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig"):
        if boolean(argument(call, -1, "fp16")) is not True:
            continue
        if boolean(argument(call, -1, "logging_nan_inf_filter")) is not False:
            if has_keyword(call, "logging_nan_inf_filter"):
                continue
            last = call.keywords[-1].value
            line, column = last.end_lineno or 0, last.end_col_offset or 0
            edit = Edit(Span(line, column, line, column), ", logging_nan_inf_filter=False")
            message = "A NaN loss is replaced before it is logged: the curve will look clean."
            yield match_at(call, message, Fix("unsafe", (edit,)))
