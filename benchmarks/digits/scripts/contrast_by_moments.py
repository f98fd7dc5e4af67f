# mypy: ignore-errors
"""Classify textures whose brightness varies: the contrast is a difference of two moments."""

import torch
from torch import nn
from torch.nn import functional


class Contrast(nn.Module):
    def forward(self, x):
        x = x.half()
        var = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2  # guilty
        return torch.log(var.float().clamp(min=1e-3))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.contrast = Contrast()
        self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, patches):
        return self.head(self.contrast(patches).squeeze(-1))


SPREADS = 0.2 + torch.rand(4, 8, generator=torch.Generator().manual_seed(1))


def patches(labels):
    brightness = 20 + 10 * torch.rand(len(labels), 8, 1)
    return brightness + torch.randn(len(labels), 8, 16) * SPREADS[labels].unsqueeze(-1)


def main():
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(200):
        labels = torch.randint(0, 4, (128,))
        batch = patches(labels)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(batch).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 49:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
