"""Gradients of a replayed step, computed with the scaler's own operations, so that the bits are equal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfguard.precision.modes import HALF_DTYPES


def scale_loss(loss: Tensor, scale: float) -> Tensor:
    """Return the loss times the scale, as the scaler computes it: in float32, also for a half loss."""
    return loss * torch.full((), scale, dtype=torch.float32, device=loss.device)


def collect_gradients(model: nn.Module, grads: dict[str, Tensor]) -> None:
    """Move gradients of half parameters into float32 sums, as master weights do; keep the others."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if parameter.dtype not in HALF_DTYPES:
            grads[name] = parameter.grad
            continue
        grad, parameter.grad = parameter.grad.float(), None
        grads[name] = grads[name].add_(grad) if name in grads else grad


def unscale_gradients(grads: list[Tensor], scale: float) -> None:
    """Divide by the scale with the operations of the scaler, so that the bits are equal."""
    inverse = torch.full((), scale, dtype=torch.float32).double().reciprocal().float()
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        values = grad._values() if grad.is_sparse else grad
        by_kind.setdefault((grad.device, grad.dtype), []).append(values)
    for (device, _), group in by_kind.items():
        found = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, inverse.to(device))
