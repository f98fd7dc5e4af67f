"""The tensors of a state by name, whole or sharded over ranks, and empty ones to read them into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from halfguard.dist.checkpoint import ShapeAndDtype
from halfguard.dist.wrapping import is_dtensor
from halfguard.incident.encoding import Encoder


class ShardEncoder(Encoder):
    """Keeps DTensors unchanged: torch writes the part that each rank holds."""

    def _tensor(self, value: Tensor, name: str) -> Any:
        if not is_dtensor(value):
            return super()._tensor(value, name)
        self.tensors[name] = value
        return {"type": "tensor", "name": name}


def tensors_by_name(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a state, under the names that a snapshot gives them."""
    encoder = ShardEncoder()
    for name, part in parts.items():
        encoder.encode(part, name)
    return encoder.tensors


def empty_tensors(
    kinds: Mapping[str, ShapeAndDtype], live: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return empty tensors, sharded like the live tensor of that name or of its parent."""
    return {
        name: _like(live.get(name, live.get(name.rpartition(".")[0])), *kind)
        for name, kind in kinds.items()
    }


def _like(live: Tensor | None, size: torch.Size, dtype: torch.dtype) -> Tensor:
    if live is not None and is_dtensor(live) and live.shape == size:
        return torch.empty_like(live, dtype=dtype)
    return torch.empty(size, dtype=dtype)
