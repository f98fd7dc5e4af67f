"""A callback for transformers' Trainer that changes nothing and counts the steps with bad gradients.

Callbacks see neither batches nor losses, so this one cannot name a cause, skip or repeat. It shows what the
Trainer's own log leaves out: ``logging_nan_inf_filter`` hides losses that are NaN.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from halfguard.numerics.finite import find_nonfinite

logger = logging.getLogger("halfguard")


class NonfiniteCallback(TrainerCallback):
    """Counts the steps whose gradients hold NaN or infinity, and logs the count beside the loss.

    Gradients are looked at before each step of the optimizer, without waiting for the device; they are read
    when the Trainer logs. The first such steps are also told as a warning, with the parameters.
    """

    def __init__(self) -> None:
        self.nonfinite_steps = 0
        self._names: list[str] = []  # of the parameters that have gradients
        self._bad: Tensor | None = None  # for each of them, the bad steps since the last log
        self._steps: list[Tensor] = []  # for each step since the last log, whether it is bad
        self._told = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Measure the gradients on the device."""
        parameters = kwargs["model"].named_parameters()
        gradients = {name: p.grad for name, p in parameters if p.grad is not None}
        positions, codes = find_nonfinite(gradients.values())
        names, bad = list(gradients), (codes > 0).long()
        names = [names[position] for position in positions]
        if names != self._names:
            self._names, self._bad = names, None
        self._bad = bad if self._bad is None else self._bad + bad
        self._steps.append(bad.amax())

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Read what was measured since the last log, and add the count to it."""
        if not self._steps or self._bad is None:
            return
        self.nonfinite_steps += int(torch.stack(self._steps).sum())
        if self.nonfinite_steps and not self._told:
            self._told = True
            counts = zip(self._names, self._bad.tolist(), strict=True)
            bad = [name for name, count in counts if count]
            logger.warning(
                "step %d: gradients of %d of %d parameters were NaN or infinite, first %s. GradScaler skips "
                "such a step, other precisions apply it. GuardedTrainer finds the cause. This is told once.",
                state.global_step,
                len(bad),
                len(self._names),
                bad[0],
            )
        kwargs["logs"]["halfguard/nonfinite_steps"] = float(self.nonfinite_steps)
        self._steps.clear()
        self._bad = None
