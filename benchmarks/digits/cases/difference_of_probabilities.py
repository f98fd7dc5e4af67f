# mypy: ignore-errors
"""Distillation by p - q, both rounded to BF16 where they are almost equal (speculators#788)."""

import torch
from torch import nn

PRECISION = "bfloat16"


class Draft(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = (
            nn.Embedding(50, 32),
            nn.Linear(32, 64),
            nn.Linear(64, 50),
        )

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embed(ids))))


def loss(model, batch):
    ids, noise = batch
    logits = model(ids).float()
    target = logits.detach() + noise
    p, q = logits.softmax(-1), target.softmax(-1)
    gap = p.bfloat16() - q.bfloat16()  # guilty
    return gap.float().square().sum(-1).mean() * 1e4


def make():
    torch.manual_seed(0)
    batch = torch.randint(0, 50, (8, 16)), 0.004 * torch.randn(8, 16, 50)
    return Draft(), loss, batch
