"""A configuration loads float16 weights and uses a gradient scaler.

## What it does
Finds `torch_dtype: float16` (or `dtype`) and `fp16: true` in one file.

## Why is this bad?
With `fp16: true` the trainer creates a gradient scaler, which raises on float16 parameters: "Attempting to
unscale FP16 gradients."

## Example
```yaml
model:
  torch_dtype: float16
training:
  output_dir: out
  fp16: true
```

## Use instead
```yaml
model:
  torch_dtype: float32
training:
  output_dir: out
  fp16: true
```

## References
peft#1336, huggingface/diffusers#6119.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, YamlMapping, is_on, is_training_arguments

META = Meta(
    code="HG504",
    name="config-half-parameters",
    cure="Load the weights in float32; autocast runs the operations in float16.",
    contains=("float16",),
    language="yaml",
    severity="error",
)
_HALF_DTYPES = {"float16", "half"}
_MESSAGE = "fp16 creates a gradient scaler, which raises on float16 parameters."


def check(file: YamlFile) -> Iterator[Match]:
    """Find float16 weights together with fp16."""
    if not any(_creates_scaler(file, mapping) for mapping in file.mappings):
        return
    for mapping in file.mappings:
        for name in ("torch_dtype", "dtype", "model_dtype"):
            entry = mapping.get(name)
            if entry is not None and (entry.value or "").removeprefix("torch.") in _HALF_DTYPES:
                yield entry.match(_MESSAGE)


def _creates_scaler(file: YamlFile, mapping: YamlMapping) -> bool:
    """Return whether a mapping turns on FP16 in transformers' trainer."""
    proven = not file.project.known or is_training_arguments(file, mapping)
    return proven and is_on(mapping.get("fp16"))
