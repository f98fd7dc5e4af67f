"""A configuration trains 16-bit weights.

## What it does
Finds Lightning's `precision: 16-true` or `bf16-true` among trainer settings.

## Why is this bad?
The weights themselves have 16 bits, without float32 copies: updates below 2**-11 of a weight are lost in
float16, and below 2**-8 in bfloat16. In float16, Adam's eps is 0 too. This is fine for inference, but not for
training.

## Example
```yaml
trainer:
  max_epochs: 3
  precision: 16-true
```

## Use instead
```yaml
trainer:
  max_epochs: 3
  precision: 16-mixed
  gradient_clip_val: 1.0
```

## References
TinyLlama#32; `halfguard explain 1-1e-4`.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, is_lightning_trainer

META = Meta(
    code="HG505",
    name="config-true-half",
    cure="Use 16-mixed, or bf16-mixed if the GPU supports it.",
    contains=("16-true",),
    language="yaml",
    severity="error",
)
_ADAPTERS = ("lora_", "peft", "adapter_")
_DTYPES = {"16-true": "float16", "bf16-true": "bfloat16"}


def check(file: YamlFile) -> Iterator[Match]:
    """Find trainers with 16-bit weights, unless only small adapters are trained."""
    if any(key.startswith(_ADAPTERS) for mapping in file.mappings for key in mapping):
        return
    for mapping in file.mappings:
        entry = mapping.get("precision")
        dtype = _DTYPES.get(entry.value or "") if entry is not None else None
        if entry is not None and dtype and is_lightning_trainer(file, mapping):
            yield entry.match(f"The weights themselves are {dtype}: small updates are lost.")
