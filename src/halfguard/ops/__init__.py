"""Stable operations for half precision: computed in float32, rounded once, with true gradients.

Each file holds one family of functions. Their float64 references, and a measurement of the unary ones on
every value of a half dtype, are in ``benchmarks/ops``.
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
