"""DBNet in miniature: a probability map P of text, a threshold map T, and B = step(P - T), differentiable.

``broken``  focal loss from probabilities: (1 - p) ** 0.5 of a p that was rounded to 1 has gradient NaN
``island``  the same, with autocast switched off around the loss and P.float()
``cured``   focal loss from logits
"""

import math

import torch
from torch import nn
from torch.nn import functional

VARIANTS = ("broken", "island", "cured")
PRIOR = 0.001  # the probability of text that training begins with
GAMMA = 0.5  # of the focal loss
K = 50  # the steepness of the step
EPS = 1e-6


class Convolution(nn.Module):
    """A 3 x 3 convolution as one matrix product: torch's has no fast FP16 backward pass on a CPU."""

    def __init__(self, width_in, width_out, stride=1):
        super().__init__()
        self.stride, self.mix = stride, nn.Linear(9 * width_in, width_out, bias=False)
        self.norm = nn.BatchNorm2d(width_out)

    def forward(self, x):
        around = functional.unfold(x, 3, padding=1, stride=self.stride).movedim(1, 2)
        rows = (x.shape[2] - 1) // self.stride + 1
        return torch.relu(self.norm(self.mix(around).movedim(2, 1).unflatten(2, (rows, -1))))


class Upsample(nn.Module):
    """A transposed convolution that makes a map twice as large."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.mix = nn.Linear(width_in, 4 * width_out)

    def forward(self, x):
        return functional.pixel_shuffle(self.mix(x.movedim(1, -1)).movedim(-1, 1), 2)


class FocalLoss(nn.Module):
    """The focal loss of each pixel: cross-entropy, weighted by how wrong the pixel is."""

    def __init__(self, variant):
        super().__init__()
        self.variant = variant

    def forward(self, logits, kernels):
        if self.variant == "cured":
            signed = torch.where(kernels > 0, logits, -logits).float()
            weight = torch.exp(GAMMA * functional.logsigmoid(-signed))
            return -weight * functional.logsigmoid(signed)
        probability = torch.sigmoid(logits)
        if self.variant == "island":
            with torch.autocast("cuda", enabled=False):
                return self.from_probability(probability.float(), kernels)
        return self.from_probability(probability, kernels)

    def from_probability(self, probability, kernels):
        right = torch.where(kernels > 0, probability, 1 - probability)
        return -((1 - right) ** GAMMA) * torch.log(right + EPS)


def head(width):
    return nn.Sequential(
        Convolution(width, width), Upsample(width, width // 2), nn.ReLU(), Upsample(width // 2, 1)
    )


class DBNet(nn.Module):
    def __init__(self, width=16, variant="cured"):
        super().__init__()
        self.stem = nn.Sequential(Convolution(1, width, 2), Convolution(width, width, 2))
        self.fine = Convolution(width, width)
        self.coarse = nn.Sequential(
            Convolution(width, 2 * width, 2), Convolution(2 * width, 2 * width)
        )
        self.up = Upsample(2 * width, width)
        self.text, self.border = head(width), head(width)
        self.focal = FocalLoss(variant)
        nn.init.constant_(self.text[-1].mix.bias, -math.log(1 / PRIOR - 1))

    def forward(self, images):
        """Return the logits of P, and T."""
        x = self.stem(images)
        x = self.fine(x) + self.up(self.coarse(x))
        return self.text(x), torch.sigmoid(self.border(x))

    def loss(self, batch):
        """Return DBNet's loss: how wrong P is, how little B overlaps the kernels, how far T is off."""
        images, maps = batch
        kernels, thresholds, near = maps.split(1, 1)
        logits, threshold = self(images)
        binary = 1 / (1 + torch.exp(-K * (torch.sigmoid(logits) - threshold)))
        overlap = 2 * (binary * kernels).sum() / (binary.sum() + kernels.sum() + EPS)
        distance = ((threshold - thresholds).abs() * near).sum() / (near.sum() + EPS)
        return 5 * hardest(self.focal(logits, kernels), kernels) + 1 - overlap + 10 * distance


def hardest(losses, kernels):
    """Return the mean over the pixels of text and three times as many of the hardest others."""
    count = kernels.sum()
    others = (losses * (1 - kernels)).flatten()
    taken = others.topk(min(int(3 * count), len(others))).values
    return ((losses * kernels).sum() + taken.sum()) / (count + len(taken) + EPS)
