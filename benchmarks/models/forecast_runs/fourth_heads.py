"""Runs in which the outputs grow: counts of a growing corpus, results of a better player, vibrations."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.forecast_runs.base import generator
from benchmarks.models.forecast_runs.third_layers import Scores, mlp, seeded
from benchmarks.models.planted.base import Training


class WordPairs(nn.Module):
    """Score pairs of words by the product of their vectors."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.centers = nn.Embedding(words, width)
        self.contexts = nn.Embedding(words, width)
        self.scores = Scores(1.0)

    def forward(self, word: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.centers(word), self.contexts.weight)
        return scores


def cooccurrences(seed: int, pairs: int, lr: float, steps: int = 900) -> Training:
    """Factor the counts of word pairs, while ``pairs`` more of them are read in each step."""
    g = seeded(seed)
    words = 60
    often = 1 / torch.arange(1.0, words + 1)
    topics = torch.randn(words, 4, generator=g)
    chances = torch.outer(often, often) * torch.exp(topics @ topics.T / 4)
    chances /= chances.sum()
    model = WordPairs(words, 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        word = torch.multinomial(often**0.75, 12, replacement=True, generator=g)
        return word, torch.poisson(pairs * (step + 1) * chances[word], generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        word, count = batch
        error = model(word).float() - count
        loss: Tensor = (error.square() / (1 + count)).mean() / (1 + count.mean())
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


class Player(nn.Module):
    """Return the scores of the moves, and a forecast of the game's result."""

    def __init__(self, inputs: int, moves: int) -> None:
        super().__init__()
        self.policy = nn.Linear(inputs, moves)
        self.value = mlp(inputs, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.policy(x), self.value(x)], -1)


def compounding(
    seed: int, lr: float, value_lr: float, stake: float, gain: float, steps: int = 900
) -> Training:
    """Learn a game of 12 moves in which every right move multiplies the stake by ``gain``."""
    g = seeded(seed)
    rule = torch.randn(8, 4, generator=g)
    model = Player(8, 4)
    optimizer = torch.optim.Adam(
        [
            {"params": list(model.policy.parameters()), "lr": lr},
            {"params": list(model.value.parameters()), "lr": value_lr},
        ]
    )

    def batch_fn(step: int) -> tuple[Tensor, Tensor]:
        g = generator(seed, step)
        return torch.randn(32, 12, 8, generator=g), torch.rand(32, 12, 4, generator=g)

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, chance = batch
        out = model(x).float()
        scores, value = out[..., :4], out[:, 0, 4]
        move = (scores.detach() - (-chance.log()).log()).argmax(-1)
        right = (move == (x.reshape(-1, 8) @ rule).argmax(-1).view(move.shape)).float()
        result = stake * torch.exp(0.3 * x[:, 0, 0]) * gain ** right.sum(-1)
        better = right - right.mean()
        taken = -functional.cross_entropy(scores.reshape(-1, 4), move.reshape(-1), reduction="none")
        forecast = functional.smooth_l1_loss(value / result.mean(), result / result.mean())
        loss: Tensor = forecast - (better.reshape(-1) * taken).mean()
        return loss

    return model, loss_fn, batch_fn, optimizer, steps


def bearing(seed: int, wear: float, lr: float, steps: int = 800) -> Training:
    """Compress the vibrations of a bearing, in raw samples that grow by a factor of ``wear`` per step."""
    seeded(seed)
    widths = (64, 24, 8, 24, 64)
    model = nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairwise(widths)))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    turns = torch.arange(64)[:, None] * torch.tensor([0.2, 0.47, 0.81])

    def batch_fn(step: int) -> Tensor:
        g = generator(seed, step)
        load = 40 * wear**step * torch.exp(0.3 * torch.randn(24, 1, generator=g))
        phases = 6.3 * torch.rand(24, 1, 3, generator=g)
        wave = torch.sin(turns + phases) @ torch.tensor([1.0, 0.6, 0.4])
        return load * (wave + 0.2 * torch.randn(24, 64, generator=g))

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        error = (model(batch).float() - batch) / batch.abs().mean()
        loss: Tensor = error.square().sum(-1).mean()
        return loss

    return model, loss_fn, batch_fn, optimizer, steps
