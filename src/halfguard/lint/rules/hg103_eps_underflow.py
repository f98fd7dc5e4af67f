"""An eps that is zero in float16 has no effect.

## What it does
Finds constants of at most 2.98e-8 that are added before `log`, `sqrt`, `rsqrt` or a division, if the tensor
may be float16. HG119 reports the tensors that certainly are.

## Why is this bad?
The smallest positive float16 value is about 6e-8. A constant of at most half of that rounds to zero, so
`1e-8` becomes 0. `torch.log(x + 1e-8)` is still -inf at 0, and `x / (y + 1e-8)` is 0/0. In unseen public
code one of five findings was in code that really runs in half, so the rule is in preview.

## Example
```py
import torch

def entropy(p):
    return -(p * torch.log(p + 1e-8)).sum(-1)
```

## Use instead
```py
import torch

def entropy(p):
    p = p.float()
    return -(p * torch.log(p + 1e-8)).sum(-1)
```

## References
See `halfguard explain 1e-8`. huggingface/diffusers#13316, pytorch#66707.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.match import Match, Meta, match_at
from halfguard.lint.numeric_checks import (
    SMALL_CONSTANTS,
    find_small_terms,
    is_model_value,
    may_be_half,
)
from halfguard.lint.python_file import PythonFile

META = Meta(
    code="HG103",
    name="eps-underflow",
    cure="Compute in float32 (x.float()), or take eps from torch.finfo(x.dtype).",
    contains=("e-8", "e-9", "e-0", "e-1", "e-2", "e-3"),
    pattern=SMALL_CONSTANTS,
    needs_half=True,
    preview=True,
)
_TRAINING = re.compile(
    r"loss|prob|logit|score|softmax|sigmoid|entropy|attn|attention|kl_|div", re.I
)


def check(file: PythonFile) -> Iterator[Match]:
    """Find added constants that underflow if the tensor is float16."""
    for term in find_small_terms(file):
        if file.is_proven_half(term.rest) or not may_be_half(file, term.rest):
            continue
        if (term.certain and _is_model_code(file, term.node)) or is_model_value(file, term.rest):
            eps = file.text(term.eps)
            yield match_at(term.eps, f"{eps} is 0 in float16: it has no effect here.")


def _is_model_code(file: PythonFile, node: ast.AST) -> bool:
    """Return whether this is model code; features of audio or images are computed in float32 anyway."""
    if file.mentions_fp16 or file.roles.is_in_nn_module(node):
        return True
    function = file.function_of(node)
    return bool(_TRAINING.search(f"{function.name if function else ''} {ast.unparse(node)}"))
