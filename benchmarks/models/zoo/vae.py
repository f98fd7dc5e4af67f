"""A variational autoencoder, with an autograd function of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, noise, seeded


class Gate(torch.autograd.Function):
    """x clipped at zero; the backward pass divides by what was clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.clamp(min=0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (out,) = ctx.saved_tensors
        slope = out / out  # <- vae-custom-backward
        return grad * slope


class Encoder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(8, 8), kind

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.linear(x).chunk(2, -1)
        if self.kind == "exp":
            std = torch.exp(log_variance * 1000)  # <- vae-exp
        elif self.kind == "custom":
            std = Gate.apply(log_variance)  # type: ignore[no-untyped-call]
        else:
            std = (log_variance - log_variance.detach()) ** 0.5  # <- vae-root-backward
        latent: Tensor = mean + std * mean
        return latent


class Vae(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(kind), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x))
        return out


def exponential(seed: int) -> Job:
    return Job(seeded(seed, lambda: Vae("exp")), in_full, noise(seed, 4, 8))


def custom_backward(seed: int) -> Job:
    return Job(seeded(seed, lambda: Vae("custom")), in_full, noise(seed, 4, 8))


def root(seed: int) -> Job:
    return Job(seeded(seed, lambda: Vae("root")), in_full, noise(seed, 4, 8))


PLANTED_FAILURES = (
    PlantedFailure("vae-exp", exponential, "exp", "encoder"),
    PlantedFailure("vae-custom-backward", custom_backward, "div", "encoder", "backward"),
    PlantedFailure("vae-root-backward", root, "pow", "encoder", "backward"),
)
