"""The measured gradients of one step: a norm per parameter, and the total norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from halfguard.dist.wrapping import full_tensor, local_tensor
from halfguard.numerics.tensor_rows import to_device


@dataclass(frozen=True)
class Gradients:
    """The unscaled gradients of one step with the norm of each; the names are the user's own."""

    names: list[str]
    norms: Tensor  # one per parameter
    total: Tensor
    overflow: Tensor | None = None  # 1.0 where one of them, on any rank, is not finite

    def worst(self, at_most: int) -> list[tuple[str, float]]:
        """Return parameters with their norms: those that are not finite, or else the largest.

        This reads the device, so call it only for unusual steps.
        """
        named = list(zip(self.names, self.norms.tolist(), strict=True))
        bad = [(name, norm) for name, norm in named if not math.isfinite(norm)]
        ranked = bad or sorted(named, key=lambda pair: pair[::-1], reverse=True)
        return ranked[:at_most]


def measure(named: Sequence[tuple[str, Tensor]], norm_type: float = 2.0) -> Gradients:
    """Compute the norm of every gradient and the total norm, with the operations of ``clip_grad_norm_``.

    The total of DTensors covers all ranks; the norms per parameter cover the parts on this rank.
    """
    grads = [grad.coalesce().values() if grad.is_sparse else grad for _, grad in named]
    first = grads[0].device
    norms: list[Tensor] = []
    order: list[int] = []
    # torch's own grouping: the order of the norms decides the last bit of their sum.
    lists: Any = [grads]
    grouped: Any = _group_tensors_by_device_and_dtype(lists, with_indices=True)
    for [group], positions in grouped.values():
        norms += torch._foreach_norm(group, norm_type)
        order += positions
    if len(grouped) > 1:  # on several devices, or of several dtypes
        norms = [to_device(norm, first) for norm in norms]
    stacked = torch.stack(norms)
    total = torch.linalg.vector_norm(stacked, norm_type)
    return Gradients(
        [named[position][0] for position in order], local_tensor(stacked), full_tensor(total)
    )
