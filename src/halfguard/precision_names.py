"""The names of the precisions, and what each of them needs in a training step. Pure Python, so that
every package and every configuration uses the same names.

A precision is two choices: the dtype in which weights are stored, and the dtype to which autocast lowers
matrix products (``precision.modes`` has both as torch dtypes). The rest follows:

===============  ========  =========  ==========  ==============
name             weights   autocast   loss scale  master weights
===============  ========  =========  ==========  ==============
``fp32``         float32   off        no          no
``fp16-mixed``   float32   float16    yes         no
``bf16-mixed``   float32   bfloat16   no          no
``fp16-weights`` float16   float16    yes         yes
===============  ========  =========  ==========  ==============

FP16 needs a loss scale because its small gradients underflow. BF16 has the range of FP32 and needs none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from halfguard.errors import UsageError

# For configurations and records, which pydantic checks; a test compares it with the enumeration.
PrecisionName = Literal["fp32", "fp16-mixed", "bf16-mixed", "fp16-weights"]
MixedPrecisionName = Literal["fp32", "fp16-mixed", "bf16-mixed"]  # those that keep FP32 weights


class Precision(StrEnum):
    """A precision by its public name; ``Precision("fp16-mixed")`` reads one from a config."""

    FP32 = "fp32"
    FP16_MIXED = "fp16-mixed"
    BF16_MIXED = "bf16-mixed"
    FP16_WEIGHTS = "fp16-weights"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise UsageError(
            f"The precision {value!r} is unknown, so no autocast dtype can be chosen.",
            cure=f"Allowed: {', '.join(cls)}.",
        )

    @property
    def needs_loss_scale(self) -> bool:
        """True if gradients pass through FP16, where small ones vanish without a scale."""
        return self in (Precision.FP16_MIXED, Precision.FP16_WEIGHTS)

    @property
    def needs_master_weights(self) -> bool:
        """True if the optimizer must update FP32 copies: half weights would lose small updates."""
        return self is Precision.FP16_WEIGHTS
