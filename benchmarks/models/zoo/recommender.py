"""A recommender: embeddings, a pairwise loss outside the model, features from the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models.zoo.base import Job, PlantedFailure, noise, seeded

Batch = tuple[Tensor, Tensor]


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items, self.project = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, items: Tensor, features: Tensor) -> Tensor:
        user = self.project(features)  # <- recommender-bad-input
        rows = self.items(items)  # <- recommender-embedding-row
        score: Tensor = (user * rows).sum(-1)
        return score


def pairwise(model: nn.Module, batch: Batch) -> Tensor:
    score = model(*batch)
    return torch.relu(1 - score).mean()


def ranking_in_half(model: nn.Module, batch: Batch) -> Tensor:
    chance = torch.sigmoid(model(*batch).half() * 100 - 1000)
    return -torch.log(chance + 1e-8).mean()  # <- recommender-loss


def _job(seed: int) -> tuple[nn.Module, Batch]:
    return seeded(seed, Recommender), (torch.tensor([1, 2, 3]), noise(seed, 3, 8))


def embedding_row(seed: int) -> Job:
    model, batch = _job(seed)
    assert isinstance(model, Recommender)
    with torch.no_grad():
        model.items.weight[2] = torch.nan
    return Job(model, pairwise, batch)


def bad_input(seed: int) -> Job:
    model, (items, features) = _job(seed)
    features[1, 3] = torch.nan
    return Job(model, pairwise, (items, features))


def loss(seed: int) -> Job:
    model, batch = _job(seed)
    return Job(model, ranking_in_half, batch)


PLANTED_FAILURES = (
    PlantedFailure(
        "recommender-embedding-row",
        embedding_row,
        "embedding",
        "items",
        kind="parameter",
        subject="items.weight",
    ),
    PlantedFailure(
        "recommender-bad-input", bad_input, "addmm", "project", kind="input", subject="features"
    ),
    PlantedFailure("recommender-loss", loss, "log", None),
)
