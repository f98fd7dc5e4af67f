"""A 16-bit run is configured without gradient clipping.

## What it does
Finds Lightning's `precision: 16-mixed` in a mapping of trainer settings without `gradient_clip_val`, and
transformers' `fp16: true`, `use_amp: true` or `use_mixed_precision: true` with a `max_grad_norm` or
`clip_grad_norm` of 0 or null.

## Why is this bad?
A gradient that is large but finite passes the scaler's check. The next step can move activations out of the
range of float16, and they do not return.

## Example
```yaml
trainer:
  max_epochs: 10
  precision: "16-mixed"
```

## Use instead
```yaml
trainer:
  max_epochs: 10
  precision: "16-mixed"
  gradient_clip_val: 5.0
  gradient_clip_algorithm: norm
```

## References
lightning#9330.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, find_fp16, find_lightning_fp16, is_lightning_trainer

META = Meta(
    code="HG501",
    name="config-without-clipping",
    cure="Set gradient_clip_val (Lightning) or max_grad_norm (transformers).",
    contains=("16", "use_amp", "use_mixed_precision"),
    language="yaml",
    preview=True,
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find 16-bit settings without clipping."""
    for mapping in file.mappings:
        half = find_lightning_fp16(file, mapping)
        if half is not None and is_lightning_trainer(file, mapping):
            clip = mapping.get("gradient_clip_val")
            if clip is None or clip.is_null or clip.number == 0:
                yield half.match("16-bit training without gradient clipping.")
        norm = mapping.get("max_grad_norm") or mapping.get("clip_grad_norm")
        if norm is None or not (norm.is_null or norm.number == 0 or norm.boolean is False):
            continue
        if (fp16 := find_fp16(file, mapping)) is not None:
            yield norm.match(f"{fp16.key} is on, but this turns off gradient clipping.")
