"""A convolutional network with its own normalisation."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, in_full, in_half, noise, seeded


class Net(nn.Module):
    def __init__(self, norm: nn.Module | None = None, gain: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.norm, self.gain = norm or nn.BatchNorm2d(4), gain

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)) * self.gain
        out: Tensor = self.second(hidden)  # <- conv-overflow
        return out


class BatchStatistics(nn.Module):
    """A batch norm that forgets that one sample has no variance."""

    def forward(self, x: Tensor) -> Tensor:
        variance = x.mean((2, 3)).var(0)  # <- conv-one-sample
        return x / (variance[:, None, None] + 1e-5).sqrt()


class Contrast(nn.Module):
    """Standardises each image; a blank one has no contrast."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean((2, 3), keepdim=True)
        spread = centred.abs().amax((2, 3), keepdim=True)
        return centred / spread  # <- conv-blank-image


def overflow(seed: int) -> Job:
    model = seeded(seed, lambda: Net(gain=1000.0))
    assert isinstance(model, Net)
    nn.init.constant_(model.second.weight, 100.0)
    return Job(model, in_half, noise(seed, 2, 1, 8, 8))


def one_sample(seed: int) -> Job:
    return Job(seeded(seed, lambda: Net(BatchStatistics())), in_full, noise(seed, 1, 1, 8, 8))


def blank(seed: int) -> Job:
    images = noise(seed, 2, 1, 8, 8)
    images[1] = 1.0
    model = seeded(seed, lambda: nn.Sequential(Contrast(), Net()))
    return Job(model, in_full, images)


PLANTED_FAILURES = (
    PlantedFailure("conv-overflow", overflow, "convolution", "second"),
    PlantedFailure("conv-one-sample", one_sample, "var", "norm"),
    PlantedFailure("conv-blank-image", blank, "div", "0"),
)
