"""HD108: BatchNorm keeps its running statistics in 16 bits.

They are moving averages, ``0.9 * old + 0.1 * new``: in half the small part is rounded away, and a variance
above 65504 is infinite in FP16. Training is not affected, but evaluation gives wrong results.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from halfguard.diagnosis.model.training_setup import TrainingSetup, join_names
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding


def check(setup: TrainingSetup) -> Iterator[Finding]:
    """Find normalisation layers with half running statistics that training updates.

    A layer in eval() inside a model in train() is frozen on purpose. A model that is in eval() as a whole was
    only just loaded, and training has not started.
    """
    model = setup.model
    if model is None:
        return
    halves = {
        name: module for name, module in model.named_modules() if _has_half_statistics(module)
    }
    found = [name for name, module in halves.items() if module.training or not model.training]
    if found:
        yield Finding(
            code="HD108",
            message=f"running statistics of BatchNorm are kept in 16 bits: {join_names(found)}.",
            subject=found[0],
            why="In half a moving average loses small increments, and a variance above 65504 is infinite in "
            "FP16: the model gives other results in eval() than in training.",
            cure="for module in model.modules():\n"
            "    if isinstance(module, torch.nn.modules.batchnorm._NormBase): module.float()",
        )


def _has_half_statistics(module: nn.Module) -> bool:
    variance = module.running_var if isinstance(module, _NormBase) else None
    return isinstance(variance, Tensor) and variance.dtype in HALF_DTYPES
