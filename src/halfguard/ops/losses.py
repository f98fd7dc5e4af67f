"""Classification and ranking losses in float32, defined where the usual ones are not.

    cross_entropy        = -Σ_counted log softmax(logits)[target] / n,  0 if no label counts (n = 0)
    binary_cross_entropy = -mean(t log p + (1 - t) log(1 - p))

Other implementations return 0/0 = NaN as the mean over no labels, which makes all weights NaN. Here
such a batch contributes nothing.

A probability of exactly 0 or 1 stands for all values that round to it, and the true slope there is
infinite. Here the loss is finite and its slope is ±4/eps (4096 in float16, 512 in bfloat16). That is
1 / (the largest distance from 1 that still rounds to 1), and it points back into (0, 1). At p = 0:

    log p ≈ log(t) + p · 4/eps,        t the smallest subnormal of the dtype

The same holds at p = 1, with 1 - p in place of p and eps/4 in place of t. Outside [0, 1] the two
lines continue. Every other p, subnormals included, has its true value and gradient.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from halfguard.errors import UsageError
from halfguard.ops._dtypes import smallest_subnormal, widen


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Tensor:
    """Compute the mean cross-entropy over labels that are not ``ignore_index``; 0 if all are ignored.

    The shapes are the same as for ``torch.nn.functional.cross_entropy``: classes are in dimension 1, or in
    dimension 0 for a single sample. Logits at ignored labels have no effect, even if they are not finite.
    """
    if target.is_floating_point():
        raise UsageError(
            f"cross_entropy takes class indices, but the target has dtype {target.dtype}.",
            cure="For class probabilities use torch.nn.functional.cross_entropy(logits.float(), target).",
        )
    counted = target != ignore_index
    ignored = ~counted if logits.ndim == 1 else (~counted).unsqueeze(1)
    total = F.cross_entropy(
        widen(logits).masked_fill(ignored, 0.0),  # else 0 * inf = NaN in the gradient
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return total / counted.sum().clamp(min=1)


def binary_cross_entropy(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the mean binary cross-entropy of probabilities, which is finite even at 0 and 1."""
    if probabilities.shape != target.shape:
        raise UsageError(
            f"binary_cross_entropy needs a target for each probability; got {list(target.shape)} for "
            f"{list(probabilities.shape)}.",
            cure="If the last dimension of the model's output has size 1, use "
            "probabilities.squeeze(-1).",
        )
    p = widen(probabilities)
    t = target.to(p.dtype)
    eps = torch.finfo(probabilities.dtype).eps
    at_zero, at_one = p <= 0, p >= 1
    log_p = torch.where(
        at_zero,
        math.log(smallest_subnormal(probabilities.dtype)) + p * (4 / eps),
        p.masked_fill(at_zero, 1.0).log(),
    )
    log_q = torch.where(
        at_one, math.log(eps / 4) + (1 - p) * (4 / eps), (-p.masked_fill(at_one, 0.0)).log1p()
    )
    return -(t * log_p + (1 - t) * log_q).mean()


def bpr_loss(positive_scores: Tensor, negative_scores: Tensor) -> Tensor:
    """Compute the Bayesian personalized ranking loss, -mean(logsigmoid(positive - negative)).

    The scores are cast to float32 before they are subtracted, because 60000 - (-60000) is Inf in float16.
    The loss of 16-bit scores is float32.
    """
    difference = widen(positive_scores) - widen(negative_scores)
    return -F.logsigmoid(difference).mean()
