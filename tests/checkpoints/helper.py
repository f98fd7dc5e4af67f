"""States as training scripts have them, and what is on disk afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


class Tied(nn.Module):
    """An embedding tied to its head, a norm with running statistics, and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("order", torch.arange(3))
        self.register_buffer("empty", torch.zeros(0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(tokens)))  # type: ignore[no-any-return]


def trained_state() -> dict[str, Any]:
    """Return model, average, optimizer, scheduler and scaler after one step."""
    model = Tied()
    ema = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    scaler = torch.amp.GradScaler(next(model.parameters()).device.type)
    scaler.scale(model(torch.tensor([1, 2, 3])).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    ema.update_parameters(model)
    return {
        "model": model,
        "ema": ema,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "epoch": 3,
    }


def files(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, hidden ones included."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
