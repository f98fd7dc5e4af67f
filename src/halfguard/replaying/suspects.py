"""What to suspect when a step does not break again, and what is not as it was."""

from __future__ import annotations

import torch

from halfguard.replaying.replayed_step import ReplayedStep

SUSPECTS = (
    "hardware: a flipped bit in memory or a faulty core; run the same step there a few times",
    "operations that are not deterministic on the device, such as atomic sums",
    "a race between the data loader and the step, or a tensor that was changed in place meanwhile",
    "state outside the model: hooks, global variables, files, a loss function that keeps its own counters",
)


def differences(step: ReplayedStep) -> tuple[str, ...]:
    """What is not as it was when the step broke."""
    record = step.record
    then = record.environment.get("torch", torch.__version__)
    ranks = record.world_size
    facts = {
        "weights: they were read some steps after the fault, by a host that lags": not record.exact,
        "weights: the incident holds none, those of the ENTRY were used": not record.weights,
        f"torch: {then} then, {torch.__version__} now": then != torch.__version__,
        f"device: {record.device} then, {step.device.type} now": record.device != step.device.type,
        "code: it had changes that were not committed": record.git.get("dirty") == "True",
        "random numbers: the form with backward() keeps no random state": None in step.rng,
        f"other ranks: {ranks} took part, and their gradients are not here; look at their incidents": (
            ranks > 1
        ),
        **{f"batch: {problem}": True for problem in record.problems},
    }
    return tuple(text for text, holds in facts.items() if holds)
