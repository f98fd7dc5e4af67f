"""A configuration sets a fixed loss scale.

## What it does
Finds DeepSpeed's `loss_scale` other than 0 in an `fp16` section.

## Why is this bad?
A fixed scale does not prevent overflow: it only removes the exception. Because the scale never adapts, every
step is skipped, or gradients become zero. 0 means dynamic scaling.

## Example
```yaml
fp16:
  enabled: true
  loss_scale: 128
```

## Use instead
```yaml
fp16:
  enabled: true
  loss_scale: 0
  initial_scale_power: 16
```

## References
DeepSpeedExamples#418.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, is_on

META = Meta(
    code="HG508",
    name="config-fixed-scale",
    cure="Set loss_scale: 0 for dynamic scaling.",
    contains=("loss_scale",),
    language="yaml",
    preview=True,
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find loss scales that cannot change."""
    for mapping in file.mappings:
        entry = mapping.get("loss_scale")
        if entry is not None and is_on(mapping.get("enabled")) and (entry.number or 0) > 0:
            yield entry.match(
                "A fixed scale never adapts: if it is too high, every step is skipped."
            )
