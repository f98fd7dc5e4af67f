"""A configuration detects anomalies in a scaled run.

## What it does
Finds `detect_anomaly: true` beside `precision: 16-mixed`.

## Why is this bad?
It raises on overflow that the scaler would skip, and makes the run two to three times slower.

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

from halfguard.lint.configs import is_on, lightning_half
from halfguard.lint.match import Match
from halfguard.lint.rule import Meta
from halfguard.lint.yamlfile import YamlFile

META = Meta(
    code="HG507",
    name="config-anomaly",
    cure="Turn it off for real runs.",
    words=("detect_anomaly",),
    language="yaml",
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find anomaly mode beside half."""
    for mapping in file.mappings:
        entry = mapping.get("detect_anomaly")
        if entry is not None and is_on(entry) and lightning_half(mapping) is not None:
            yield entry.match("This raises on overflow that the scaler would skip.")
