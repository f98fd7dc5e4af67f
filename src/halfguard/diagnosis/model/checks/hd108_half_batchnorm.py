"""HD108: BatchNorm keeps its running statistics in 16 bits.

They are moving averages, ``0.9 * old + 0.1 * new``: in half the small part is rounded away, and a variance
above 65504 is infinite in FP16. Training looks well, evaluation does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from halfguard.diagnosis.model.subject import Subject
from halfguard.diagnosis.model.wording import listed
from halfguard.precision.modes import HALF_DTYPES
from halfguard.records.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Find normalisation layers with half running statistics that training moves.

    A layer in eval() within a model that trains is meant to stand still. A model that is in eval() as a
    whole is only not in training yet, as somebody has loaded it.
    """
    model = subject.model
    if model is None:
        return
    halves = {name: module for name, module in model.named_modules() if _averages_in_half(module)}
    found = [name for name, module in halves.items() if module.training or not model.training]
    if found:
        yield Finding(
            code="HD108",
            message=f"running statistics of BatchNorm are kept in 16 bits: {listed(found)}.",
            subject=found[0],
            why="A moving average loses its small increments in half, and a variance above 65504 is "
            "infinite in FP16: eval() will not reproduce what was trained.",
            cure="for module in model.modules():\n"
            "    if isinstance(module, torch.nn.modules.batchnorm._NormBase): module.float()",
        )


def _averages_in_half(module: nn.Module) -> bool:
    variance = module.running_var if isinstance(module, _NormBase) else None
    return isinstance(variance, Tensor) and variance.dtype in HALF_DTYPES
