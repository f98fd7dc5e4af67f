"""A configuration turns on anomaly detection in a run with loss scaling.

## What it does
Finds `detect_anomaly: true` together with `precision: 16-mixed`.

## Why is this bad?
It raises on an overflow that the scaler would skip, and makes the run two to three times slower.

## Example
```yaml
trainer:
  precision: 16-mixed
  gradient_clip_val: 1.0
  detect_anomaly: true
```

## Use instead
```yaml
trainer:
  precision: 16-mixed
  gradient_clip_val: 1.0
```

## References
See HG307.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, find_lightning_fp16, is_on

META = Meta(
    code="HG507",
    name="config-anomaly",
    cure="Turn it off for training runs.",
    contains=("detect_anomaly",),
    language="yaml",
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find anomaly mode together with 16-bit precision."""
    for mapping in file.mappings:
        entry = mapping.get("detect_anomaly")
        if entry is not None and is_on(entry) and find_lightning_fp16(file, mapping) is not None:
            yield entry.match("This raises on an overflow that the scaler would skip.")
