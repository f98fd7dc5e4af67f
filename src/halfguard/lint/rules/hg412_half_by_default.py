"""The default dtype of new tensors is set to float16.

## What it does
Finds `torch.set_default_dtype(torch.float16)` and `torch.set_default_tensor_type` with a float16 type.

## Why is this bad?
Every parameter, statistic and constant created afterwards is float16: sums over many values stop growing at
2048, normalization constants become zero, and updates are lost. Autocast uses float16 only where it is safe.

## Example
```py
import torch

torch.set_default_dtype(torch.float16)
```

## Use instead
```py
import torch

with torch.autocast("cuda", dtype=torch.float16):
    pass
```

## References
`halfguard explain 2048+1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.precision import Precision
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG412",
    name="half-by-default",
    cure="Use autocast and keep the default dtype.",
    contains=("set_default_",),
)
_TRAINS = re.compile(r"\.backward\(|Trainer\(|training_step")


def check(file: PythonFile) -> Iterator[Match]:
    """Find calls that set the default dtype to float16."""
    if file.project.known and not _TRAINS.search(file.source.text):
        return  # models are often loaded for inference in this way
    for call in file.calls("set_default_dtype", "set_default_tensor_type"):
        if not call.args or not file.full_name(call.func).startswith("torch."):
            continue
        half = file.dtype_precision(call.args[0]) is Precision.HALF
        if half or file.full_name(call.args[0]).endswith("HalfTensor"):
            yield match_at(call, "Every tensor created after this call is float16.")
