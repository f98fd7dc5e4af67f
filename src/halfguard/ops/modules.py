"""Modules for use in a model definition: each calls one operation with fixed options."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfguard.ops.capping import soft_cap
from halfguard.ops.distillation import Distillation, distillation_loss
from halfguard.ops.losses import binary_cross_entropy, cross_entropy
from halfguard.ops.norms import rms_norm
from halfguard.ops.ranking import bpr_loss


class SoftCap(nn.Module):
    """``soft_cap`` with a fixed cap."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        """Bound ``x`` to ±cap."""
        return soft_cap(x, self.cap)

    def extra_repr(self) -> str:
        """Return the cap, for print(model)."""
        return f"cap={self.cap:g}"


class RMSNorm(nn.Module):
    """``rms_norm`` over the last dimension of ``size``, with a learned weight."""

    def __init__(
        self,
        size: int,
        eps: float | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``x`` along its last dimension."""
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Return size and eps, for print(model)."""
        return f"{self.weight.numel()}, eps={self.eps}"


class BPRLoss(nn.Module):
    """``bpr_loss``."""

    def forward(self, positive_scores: Tensor, negative_scores: Tensor) -> Tensor:
        """Compute the mean ranking loss."""
        return bpr_loss(positive_scores, negative_scores)


class CrossEntropyLoss(nn.Module):
    """``cross_entropy`` with fixed options."""

    def __init__(self, ignore_index: int = -100, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the mean loss over the labels that are not ignored."""
        return cross_entropy(logits, target, self.ignore_index, self.label_smoothing)


class BCELoss(nn.Module):
    """``binary_cross_entropy``; allowed under autocast on every device, unlike ``nn.BCELoss``."""

    def forward(self, probabilities: Tensor, target: Tensor) -> Tensor:
        """Compute the mean loss."""
        return binary_cross_entropy(probabilities, target)


class DistillationLoss(nn.Module):
    """``distillation_loss`` with fixed temperature and weights."""

    def __init__(
        self, temperature: float, kd_weight: float, ce_weight: float, ignore_index: int = -100
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.kd_weight = kd_weight
        self.ce_weight = ce_weight
        self.ignore_index = ignore_index

    def forward(
        self, student_logits: Tensor, teacher_logits: Tensor, target: Tensor
    ) -> Distillation:
        """Compute the parts of the loss; call backward on ``total``."""
        return distillation_loss(
            student_logits,
            teacher_logits,
            target,
            temperature=self.temperature,
            kd_weight=self.kd_weight,
            ce_weight=self.ce_weight,
            ignore_index=self.ignore_index,
        )
