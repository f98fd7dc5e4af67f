"""The job whose time and memory are measured: residual layers of one width, with or without a guard."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from halfguard.acceptance.jobs import MAX_NORM, OPTIMIZERS
from halfguard.acceptance.setting import Setting
from halfguard.guard.guard import Guard

LAYERS, ROWS, SCALE = 6, 64, 64.0
Step = Callable[[], object]


class Residual(nn.Module):
    """A stack of normalized linear layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + functional.gelu(layer(norm(x)))
        return x


class LargeJob:
    """A model, its optimizer and one batch on the device under test."""

    def __init__(
        self, device: torch.device, optimizer: str, width: int, layers: int = LAYERS
    ) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.model = Residual(width, layers).to(device)
            self.batch = torch.randn(ROWS, width).to(device)
        self.optimizer: Optimizer = OPTIMIZERS[optimizer](self.model.parameters())

    @staticmethod
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        """Return the mean square of the output."""
        output: Tensor = model(batch)
        return output.float().square().mean()

    def bare(self) -> Step:
        """Return a step of the bare loop."""
        device = self.batch.device.type
        scaler = torch.amp.GradScaler(device, init_scale=SCALE)

        def step() -> None:
            with torch.autocast(device, torch.float16):
                loss = self.loss(self.model, self.batch)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
            scaler.step(self.optimizer)
            scaler.update()
            self.optimizer.zero_grad()

        return step

    def guarded(self) -> Step:
        """Return a step of the guarded loop."""
        config = {"clip": {"max_norm": MAX_NORM}, "scale": {"init": SCALE}}
        guard = Guard(self.model, self.optimizer, config)
        return lambda: guard.step(self.loss, self.batch)


def width_for(setting: Setting) -> int:
    """Return the width: an accelerator needs larger layers before its time is worth measuring."""
    return setting.size.width * (1 if setting.device.type == "cpu" else 4)
