"""A clip value so high that it clips nothing.

## What it does
Finds a `gradient_clip_val` or `max_grad_norm` of 10 or more beside 16-bit precision, where clipping is by
norm.

## Why is this bad?
A higher value clips less. A gradient of norm 10 becomes 0.5 at 0.5, 5 at 5, and stays 10 at 50. Raising it
against NaN does the reverse of what was meant.

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

from halfguard.lint.configs import is_on, lightning_half
from halfguard.lint.match import Match
from halfguard.lint.rule import Meta
from halfguard.lint.yamlfile import YamlFile

META = Meta(
    code="HG502",
    name="config-raised-clip",
    cure="Lower it: 1.0 is a common start, 5.0 a generous one.",
    words=("gradient_clip_val", "max_grad_norm"),
    language="yaml",
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find clip values that are out of reach."""
    for mapping in file.mappings:
        if lightning_half(mapping) is None and not is_on(mapping.get("fp16")):
            continue
        for name in ("gradient_clip_val", "max_grad_norm"):
            entry = mapping.get(name)
            if entry is not None and entry.number is not None and entry.number >= 10:
                yield entry.match(f"{name} of {entry.number:g} clips less, not more.")
