"""``apply_plan``: make the modules that a plan names FP32 islands.

A plan may also have single lines of source code. A line has no module that could be changed: it needs
somebody who runs the loss function, which only the guard does. ``apply_plan`` says so.
"""

from __future__ import annotations

import difflib
import logging
import os
from typing import Any

from torch import nn

from halfguard.errors import UsageError
from halfguard.precision.islands import fp32_island
from halfguard.records.plan import LineIsland, PrecisionPlan
from halfguard.step.parameters import without_wrappers

logger = logging.getLogger("halfguard")

_LISTED = 3  # lines that a warning names


def apply_plan(
    model: nn.Module, plan: PrecisionPlan | dict[str, Any] | str | os.PathLike[str]
) -> list[str]:
    """Make every island of ``plan``, a plan or a file's path; return the paths of the modules.

    All names are looked up before the first module is changed. Call this before ``torch.compile``. In a
    model wrapped by DDP, FSDP or torch.compile, names work without the wrapper's prefix.

    Lines of the plan are not applied, and a warning names them: give such a plan to the guard.
    """
    plan = PrecisionPlan.load(plan)
    made = make_islands(model, plan)
    if plan.lines:
        logger.warning(
            "The plan also keeps %s in FP32. apply_plan() changes modules only, so %s in half. Give the plan "
            "to the guard, Guard(model, optimizer, {'plan': 'plan.yaml'}), whose step(loss_fn, batch) runs "
            "such lines in FP32; or write .float() there, and remove the entry from the plan.",
            _describe_lines(plan.lines),
            "it stays" if len(plan.lines) == 1 else "they stay",
        )
    return made


def make_islands(model: nn.Module, plan: PrecisionPlan) -> list[str]:
    """Make the modules of ``plan`` islands, and return their paths; lines are the caller's business."""
    found = _find_modules(model, plan.modules)
    for module in found.values():
        fp32_island(module)
    return list(found)


def _describe_lines(lines: tuple[LineIsland, ...]) -> str:
    named = ", ".join(f"{line.file}:{line.line} ({line.code})" for line in lines[:_LISTED])
    more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    return f"{'the line' if len(lines) == 1 else f'{len(lines)} lines'} {named}{more}"


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
