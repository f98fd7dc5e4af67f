"""The four precisions by name, and what each of them asks of a training step.

A precision is two choices: the dtype in which the weights are stored, and the dtype to which
autocast lowers matrix products. All that a loop must do follows from them:

===============  ========  =========  ==========  ==============
name             weights   autocast   loss scale  master weights
===============  ========  =========  ==========  ==============
``fp32``         float32   off        no          no
``fp16-mixed``   float32   float16    yes         no
``bf16-mixed``   float32   bfloat16   no          no
``fp16-weights`` float16   float16    yes         yes
===============  ========  =========  ==========  ==============

FP16 needs a loss scale because its gradients underflow; BF16 has the range of FP32 and needs none.
FP16 weights keep autocast on. A half model without it computes its loss and its softmax in half, and
refuses FP32 inputs; with it, matrix products cost the same (there is nothing left to cast) and the
operations that need FP32 get it.
"""

from __future__ import annotations

from enum import StrEnum

import torch

from halfguard.errors import UsageError

HALF_DTYPES = (torch.float16, torch.bfloat16)


class Precision(StrEnum):
    """A precision by its public name; ``Precision("fp16-mixed")`` reads one from a config."""

    FP32 = "fp32"
    FP16_MIXED = "fp16-mixed"
    BF16_MIXED = "bf16-mixed"
    FP16_WEIGHTS = "fp16-weights"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise UsageError(
            f"precision {value!r} is not known: the loop could not choose an autocast dtype.",
            cure=f"Allowed: {', '.join(cls)}.",
        )

    @property
    def weights_dtype(self) -> torch.dtype:
        """The dtype in which the model's parameters are stored."""
        return torch.float16 if self is Precision.FP16_WEIGHTS else torch.float32

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype to which autocast lowers matrix products, or None where it is off."""
        return _AUTOCAST[self]

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients pass through FP16, so that small ones vanish without a scale."""
        return self.autocast_dtype is torch.float16

    @property
    def needs_master_weights(self) -> bool:
        """Whether the optimizer must update FP32 copies, since the weights would lose updates."""
        return self.weights_dtype is not torch.float32


_AUTOCAST: dict[Precision, torch.dtype | None] = {
    Precision.FP32: None,
    Precision.FP16_MIXED: torch.float16,
    Precision.BF16_MIXED: torch.bfloat16,
    Precision.FP16_WEIGHTS: torch.float16,
}


def autocast(precision: Precision | str, device_type: str) -> torch.autocast:
    """Return the context for a forward pass; ``fp32`` switches an outer autocast off."""
    dtype = Precision(precision).autocast_dtype
    if dtype is None:
        return full_precision(device_type)
    return torch.autocast(device_type, dtype=dtype)


def full_precision(device_type: str) -> torch.autocast:
    """Return the context for a region that must not be lowered: an FP32 island, a retried step.

    It switches autocast off and casts nothing. A tensor that an outer autocast has already made half
    stays half until it is cast: ``module(x.float())``.
    """
    return torch.autocast(device_type, enabled=False)
