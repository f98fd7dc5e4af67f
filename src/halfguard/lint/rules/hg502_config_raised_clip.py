"""A clip value is too high to clip anything.

## What it does
Finds a `gradient_clip_val`, `max_grad_norm` or `clip_grad_norm` of 10 or more together with 16-bit precision,
for clipping by norm.

## Why is this bad?
A higher value clips less. A gradient of norm 10 becomes 0.5 with a value of 0.5, 5 with 5, and stays 10 with
50. A higher value against NaN has the opposite of the intended effect.

## Example
```yaml
trainer:
  max_epochs: 10
  precision: 16-mixed
  gradient_clip_val: 10.0
```

## Use instead
```yaml
trainer:
  max_epochs: 10
  precision: 16-mixed
  gradient_clip_val: 1.0
```

## References
Measured with `clip_grad_norm_` at 0.5, 5 and 50.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, find_fp16, find_lightning_fp16

META = Meta(
    code="HG502",
    name="config-raised-clip",
    cure="Lower it: 1.0 is a common start, 5.0 is generous.",
    contains=("gradient_clip_val", "max_grad_norm", "clip_grad_norm"),
    language="yaml",
    preview=True,
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find clip values of 10 or more."""
    for mapping in file.mappings:
        if find_lightning_fp16(file, mapping) is None and find_fp16(file, mapping) is None:
            continue
        for name in ("gradient_clip_val", "max_grad_norm", "clip_grad_norm"):
            entry = mapping.get(name)
            if entry is not None and entry.number is not None and entry.number >= 10:
                yield entry.match(f"{name} is {entry.number:g}: a higher value clips less.")
