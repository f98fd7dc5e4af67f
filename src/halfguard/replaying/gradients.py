"""Gradients as the scaler leaves them: by its own operations, so that the bits are the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from halfguard.precision.modes import HALF_DTYPES


def scaled(loss: Tensor, scale: float) -> Tensor:
    """A loss times the loss scale, as the scaler does it: in float32, also if the loss is half."""
    return loss * torch.full((), scale, dtype=torch.float32, device=loss.device)


def collect(model: nn.Module, grads: dict[str, Tensor]) -> None:
    """Move gradients of half parameters to float32 sums, as master weights do; note the others."""
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if parameter.dtype not in HALF_DTYPES:
            grads[name] = parameter.grad
            continue
        grad, parameter.grad = parameter.grad.float(), None
        grads[name] = grads[name].add_(grad) if name in grads else grad


def unscale(grads: list[Tensor], scale: float) -> None:
    """Divide by the scale with the operations of the scaler, so that the bits are the same."""
    inverse = torch.full((), scale, dtype=torch.float32).double().reciprocal().float()
    by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in grads:
        values = grad._values() if grad.is_sparse else grad
        by_kind.setdefault((grad.device, grad.dtype), []).append(values)
    for (device, _), group in by_kind.items():
        found = torch.zeros((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, inverse.to(device))
