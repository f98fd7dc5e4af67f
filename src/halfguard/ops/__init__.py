"""Stable operations for 16-bit precision: computed in float32, rounded once, with exact gradients.

Each file contains one family of functions. ``benchmarks/ops`` contains their float64 references and measures
unary functions on every value of a 16-bit dtype.
"""

from __future__ import annotations

from halfguard.ops.distillation import Distillation, distillation_loss
from halfguard.ops.elementary import div, exp, log, logsigmoid, rsqrt, soft_cap, sqrt
from halfguard.ops.losses import binary_cross_entropy, bpr_loss, cross_entropy
from halfguard.ops.norms import cosine_similarity, masked_softmax, normalize, rms_norm

__all__ = [
    "Distillation",
    "binary_cross_entropy",
    "bpr_loss",
    "cosine_similarity",
    "cross_entropy",
    "distillation_loss",
    "div",
    "exp",
    "log",
    "logsigmoid",
    "masked_softmax",
    "normalize",
    "rms_norm",
    "rsqrt",
    "soft_cap",
    "sqrt",
]
