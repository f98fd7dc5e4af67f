"""A configuration hides NaN in the log.

## What it does
Finds `fp16: true` among transformers' training arguments without `logging_nan_inf_filter: false`.

## Why is this bad?
By default a loss that is not finite is replaced with the running mean before it is logged.

## Example
```yaml
output_dir: out
per_device_train_batch_size: 8
fp16: true
```

## Use instead
```yaml
output_dir: out
per_device_train_batch_size: 8
fp16: true
logging_nan_inf_filter: false
```

## References
trl#6702.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfguard.lint.match import Match, Meta
from halfguard.lint.yaml_file import YamlFile, is_on, is_training_arguments

META = Meta(
    code="HG506",
    name="config-nan-filtered",
    cure="Set logging_nan_inf_filter: false.",
    contains=("fp16",),
    language="yaml",
    preview=True,
)


def check(file: YamlFile) -> Iterator[Match]:
    """Find arguments with the filter on."""
    for mapping in file.mappings:
        if not is_on(mapping.get("fp16")) or not is_training_arguments(file, mapping):
            continue
        entry = mapping.get("logging_nan_inf_filter")
        if entry is None or entry.boolean is True:
            where = entry or mapping["fp16"]
            yield where.match("A NaN loss is replaced before it is logged.")
