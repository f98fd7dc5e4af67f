"""The tensors of a state by name, each whole or spread over ranks, and room to read them into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from halfguard.dist.checkpoint import Kind
from halfguard.dist.wrapping import is_spread
from halfguard.incident.encoding import Encoder


class ShardEncoder(Encoder):
    """Keeps DTensors as they are: torch writes the part that lies on each rank."""

    def _tensor(self, value: Tensor, name: str) -> Any:
        if not is_spread(value):
            return super()._tensor(value, name)
        self.tensors[name] = value
        return {"type": "tensor", "name": name}


def by_name(parts: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors in some parts of a state, under the names that a snapshot gives them."""
    encoder = ShardEncoder()
    for name, part in parts.items():
        encoder.encode(part, name)
    return encoder.tensors


def room_for(kinds: Mapping[str, Kind], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Memory as it is found, spread as the live tensor of that name is, or else of what it belongs to."""
    return {
        name: _like(live.get(name, live.get(name.rpartition(".")[0])), *kind)
        for name, kind in kinds.items()
    }


def _like(live: Tensor | None, size: torch.Size, dtype: torch.dtype) -> Tensor:
    if live is not None and is_spread(live) and live.shape == size:
        return torch.empty_like(live, dtype=dtype)
    return torch.empty(size, dtype=dtype)
