# mypy: ignore-errors
"""Detect bursts in a stream of events: moving sums as differences of a cumulative sum, in bfloat16."""

import torch
from torch import nn
from torch.nn import functional

WIDTH = 8


class Bursts(nn.Module):
    def __init__(self, length=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(16, 1)

    def forward(self, events):
        total = torch.cumsum(events, dim=-1).to(torch.bfloat16)  # guilty
        moving = (total[:, WIDTH:] - total[:, :-WIDTH]) / WIDTH
        return self.head(self.net(moving.unsqueeze(1) - 20).amax(-1))


def stream(count=24):
    events = 20 + 0.3 * torch.randn(count, 128)
    label = torch.randint(0, 2, (count, 1)).float()
    where = torch.randint(60, 110, (count, 1))
    inside = (torch.arange(128) >= where) & (torch.arange(128) < where + 10)
    return events + 0.4 * label * inside, label


def main():
    torch.manual_seed(0)
    model = Bursts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(100):
        events, label = stream()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(events)
        loss = functional.binary_cross_entropy_with_logits(out.float(), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 39:
            print(step, f"{loss.item():.4f}")


main()
