"""A configuration turns on both FP16 and BF16.

## What it does
Finds `fp16: true` and `bf16: true` in one mapping.

## Why is this bad?
They exclude each other: the trainer raises, after the data has been prepared.

## Example
```yaml
output_dir: out
fp16: true
bf16: true
```

## Use instead
```yaml
output_dir: out
bf16: true
```

## References
transformers documentation of `TrainingArguments`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, is_on, is_training_arguments

META = Meta(
    code="HG503",
    name="config-fp16-and-bf16",
    cure="Choose one.",
    contains=("bf16",),
    language="yaml",
    severity="error",
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find both in one mapping."""
    for mapping in file.mappings:
        proven = not file.project.known or is_training_arguments(file, mapping)
        if proven and is_on(mapping.get("fp16")) and is_on(mapping.get("bf16")):
            yield mapping["bf16"].match("fp16 and bf16 exclude each other.")
