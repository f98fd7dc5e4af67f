"""``apply_plan``: make the islands of a plan in a model, or say which of them it does not have."""

from __future__ import annotations

import difflib
import os
from typing import Any

from torch import nn

from halfguard.errors import UsageError
from halfguard.precision.islands import fp32_island
from halfguard.records.plan import PrecisionPlan

# Wrappers put a level between the model and the names that its author wrote down.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def apply_plan(
    model: nn.Module, plan: PrecisionPlan | dict[str, Any] | str | os.PathLike[str]
) -> list[str]:
    """Make every island of ``plan`` (or of the file at that path); return the paths of the modules.

    All names are looked up before the first module is changed. Apply it before ``torch.compile``; a model
    inside DDP, FSDP or a compiled one is found by the names that it has without the wrapper.
    """
    plan = PrecisionPlan.load(plan)
    found = _find(model, plan.modules)
    for module in found.values():
        fp32_island(module)
    return list(found)


def _find(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Module]:
    # remove_duplicate=False: a shared module has several paths, and each of them is right.
    modules = dict(model.named_modules(remove_duplicate=False))
    bare = {_without_wrappers(path): path for path in reversed(modules)}
    paths = {name: name if name in modules else bare.get(name) for name in names}
    unknown = [name for name, path in paths.items() if path is None]
    if unknown:
        raise UsageError(
            f"The plan names {_listed(unknown, modules)}; {type(model).__name__} has no such module. "
            "Nothing was changed.",
            cure="Was the plan made for another model, or a module renamed? Make it anew with: "
            "halfguard plan ENTRY -o plan.yaml",
        )
    return {path: modules[path] for path in paths.values() if path is not None}


def _without_wrappers(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def _listed(unknown: list[str], modules: dict[str, nn.Module]) -> str:
    parts = []
    for name in unknown:
        close = difflib.get_close_matches(name, [path for path in modules if path], n=2, cutoff=0.5)
        hint = f" (close: {', '.join(close)})" if close else ""
        parts.append(f"{name!r}{hint}")
    return ", ".join(parts)
