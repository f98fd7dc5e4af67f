"""``apply_plan``: make the modules and lines that a plan names FP32 islands."""

from __future__ import annotations

import logging
import os
from typing import Any

from torch import nn

from halfguard.precision.islands import make_islands
from halfguard.records.plan import LineIsland, PrecisionPlan
from halfguard.trials.line_islands import LineIslands

logger = logging.getLogger("halfguard")

_LISTED = 3  # lines that a warning names


def apply_plan(
    model: nn.Module, plan: PrecisionPlan | dict[str, Any] | str | os.PathLike[str]
) -> list[str]:
    """Apply ``plan`` (a plan or a file) to the model, and return the paths of the changed modules.

    All names are checked before the first module is changed. Call this before ``torch.compile``. In a model
    wrapped by DDP, FSDP or torch.compile, names work without the wrapper's prefix.

    A line in the plan runs in FP32 inside the modules that it belongs to. Lines of a loss function do not
    belong to a module, so a warning names them. To apply them, pass the plan to a guard.
    """
    plan = PrecisionPlan.load(plan)
    made = make_islands(model, plan)
    lines = LineIslands(line for line in plan.lines if line.within)
    lines.attach(model)
    of_none = tuple(line for line in plan.lines if not line.within)
    warn_about_lines((*of_none, *lines.unattached))
    return made


def warn_about_lines(lines: tuple[LineIsland, ...]) -> None:
    """Say that lines stay in half, because only ``guard.step`` runs the loss function that they are in."""
    if lines:
        logger.warning(
            "The plan also keeps %s in FP32. This code is outside the modules of this model, so "
            "%s in 16-bit precision. Guard(model, optimizer, {'plan': 'plan.yaml'}).step(loss_fn, "
            "batch) runs such lines in FP32. Alternatively, write .float() there and remove the "
            "entry from the plan.",
            _describe_lines(lines),
            "it stays" if len(lines) == 1 else "they stay",
        )


def _describe_lines(lines: tuple[LineIsland, ...]) -> str:
    named = ", ".join(f"{line.file}:{line.line} ({line.code})" for line in lines[:_LISTED])
    more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
    return f"{'the line' if len(lines) == 1 else f'{len(lines)} lines'} {named}{more}"
