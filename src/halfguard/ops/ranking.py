"""Pairwise ranking losses: a wanted item should score higher than an unwanted one.

    logsigmoid(x) = log(1 / (1 + e^-x)) = min(x, 0) - log1p(e^-|x|)
    d/dx          = 1 / (1 + e^x)       = z / (1 + z) with z = e^-x for x > 0, no cancellation

log(sigmoid(x) + eps) fails twice in half: sigmoid(x) is 0 below -17, and an eps of 1e-8 is 0 as
well. The form above needs no cap: every finite x has a finite value, and its gradient underflows
only where the true one does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from halfguard.ops._dtypes import widen
from halfguard.ops.unary import UnaryOp


def logsigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x)): about x for very negative x, about -e^-x for large x."""
    return F.logsigmoid(widen(x)).to(x.dtype)


def logsigmoid_reference(x: Tensor) -> Tensor:
    """Compute logsigmoid in float64."""
    wide = x.double()
    return wide.clamp(max=0) - (-wide.abs()).exp().log1p()


def logsigmoid_derivative(x: Tensor) -> Tensor:
    """Return sigmoid(-x)."""
    return 1 / (1 + x.double().exp())


def bpr_loss(positive_scores: Tensor, negative_scores: Tensor) -> Tensor:
    """Return -mean(logsigmoid(positive - negative)), Bayesian personalised ranking, float32 for half.

    The scores are cast before they are subtracted: 60000 - (-60000) is inf in float16.
    """
    difference = widen(positive_scores) - widen(negative_scores)
    return -F.logsigmoid(difference).mean()


def bpr_loss_reference(positive_scores: Tensor, negative_scores: Tensor) -> Tensor:
    """Compute bpr_loss in float64."""
    margin = positive_scores.double() - negative_scores.double()
    return torch.logaddexp(torch.zeros_like(margin), -margin).mean()


UNARY = (UnaryOp("logsigmoid", logsigmoid, logsigmoid_reference, logsigmoid_derivative, "none"),)
