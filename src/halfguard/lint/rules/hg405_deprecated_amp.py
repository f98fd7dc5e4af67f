"""`torch.cuda.amp` is deprecated.

## What it does
Finds calls of `torch.cuda.amp.GradScaler`, `torch.cuda.amp.autocast` and their CPU relatives.

## Why is this bad?
Each call warns, and will be removed; and the device is fixed in the name, so that the same script does
nothing useful on any other accelerator.

## Example
```py
import torch

scaler = torch.cuda.amp.GradScaler(init_scale=1024.0)
with torch.cuda.amp.autocast():
    pass
```

## Use instead
```py
import torch

scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
with torch.amp.autocast("cuda"):
    pass
```

## Fix safety
Safe where arguments are given by name: the new call does the same. An argument by position gets its name.

## References
pytorch 2.4 release notes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from halfguard.lint.conditions import text_of
from halfguard.lint.edits import replace
from halfguard.lint.match import Fix, Match, match_at
from halfguard.lint.model import Model
from halfguard.lint.rule import Meta

META = Meta(
    code="HG405",
    name="deprecated-amp",
    cure='Use torch.amp.GradScaler("cuda") and torch.amp.autocast("cuda").',
    words=("cuda.amp", "cpu.amp", "cuda import amp"),
    fix="safe",
)
_VERSION = re.compile(r"version|GREATER|hasattr|is_torch", re.IGNORECASE)
_NAMES = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
}


def check(module: Model) -> Iterator[Match]:
    """Find deprecated calls."""
    for name, positions in _NAMES.items():
        for call in module.calls(name):
            dotted = module.dotted(call.func)
            device = next(
                (d for d in ("cuda", "cpu") if dotted.startswith(f"torch.{d}.amp.")), None
            )
            if device is not None and not _is_fallback(module, call):
                fix = _fix(module, call, name, device, positions)
                message = f'{dotted} is deprecated: use torch.amp.{name}("{device}").'
                yield match_at(call, message, fix)


def _is_fallback(module: Model, call: ast.Call) -> bool:
    """Whether the call serves older versions of torch, behind a question about the version."""
    tests = [p.test for p in module.ancestors(call) if isinstance(p, ast.If | ast.IfExp)]
    return any(_VERSION.search(text_of(test)) for test in tests)


def _fix(
    module: Model, call: ast.Call, name: str, device: str, positions: tuple[str, ...]
) -> Fix | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(positions):
        return None
    kept = [f"{n}={module.text(a)}" for n, a in zip(positions, call.args, strict=False)]
    for keyword in call.keywords:
        value = module.text(keyword.value)
        kept.append(f"{keyword.arg}={value}" if keyword.arg else f"**{value}")
    text = ", ".join((f'"{device}"', *kept))
    edit = replace(module, call, f"torch.amp.{name}({text})")
    return Fix("safe", (edit,), ("torch",)) if edit else None
