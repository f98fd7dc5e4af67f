"""``apply_plan``: make the modules that a plan names FP32 islands."""

from __future__ import annotations

import difflib
import os
from typing import Any

from torch import nn

from halfguard.errors import UsageError
from halfguard.precision.islands import fp32_island
from halfguard.records.plan import PrecisionPlan
from halfguard.step.names import without_wrappers


def apply_plan(
    model: nn.Module, plan: PrecisionPlan | dict[str, Any] | str | os.PathLike[str]
) -> list[str]:
    """Make every island of ``plan``, a plan or a file's path; return the paths of the modules.

    All names are looked up before the first module is changed. Call this before ``torch.compile``. In a
    model wrapped by DDP, FSDP or torch.compile, names work without the wrapper's prefix.
    """
    plan = PrecisionPlan.load(plan)
    found = _find_modules(model, plan.modules)
    for module in found.values():
        fp32_island(module)
    return list(found)


def _find_modules(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    # remove_duplicate=False: a shared module has several paths, and all of them are valid.
    modules = dict(model.named_modules(remove_duplicate=False))
    bare = {without_wrappers(path): path for path in reversed(modules)}
    paths = {name: name if name in modules else bare.get(name) for name in names}
    unknown = [name for name, path in paths.items() if path is None]
    if unknown:
        raise UsageError(
            f"The plan names {_with_hints(unknown, modules)}; {type(model).__name__} has no such "
            "module. Nothing was changed.",
            cure="If the plan is for another model, or a module was renamed, make a new one with: "
            "halfguard plan ENTRY -o plan.yaml",
        )
    return {path: modules[path] for path in paths.values() if path is not None}


def _with_hints(unknown: list[str], modules: dict[str, nn.Module]) -> str:
    parts = []
    for name in unknown:
        close = difflib.get_close_matches(name, [path for path in modules if path], n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        parts.append(f"{name!r}{hint}")
    return ", ".join(parts)
