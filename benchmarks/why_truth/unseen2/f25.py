"""Heat-map regression: the network predicts a map of probabilities on a grid of cells."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=120)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--lr", type=float, default=3e-3)
args = ap.parse_args()

torch.manual_seed(31)
GRID = 16
INPUT = 2


def heatmaps(n):
    """A bump at a position that the input encodes; cells hold small densities."""
    centre = torch.rand(n, 2)
    axis = (torch.arange(GRID) + 0.5) / GRID
    dx = (axis[None, :, None] - centre[:, 0, None, None]) ** 2
    dy = (axis[None, None, :] - centre[:, 1, None, None]) ** 2
    bump = torch.exp(-(dx + dy) / 0.05)
    density = bump / bump.sum((1, 2), keepdim=True)
    return centre * 2 - 1, density.flatten(1)


class MapNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(INPUT, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.to_map = nn.Linear(hidden, GRID * GRID)

    def forward(self, x):
        return F.softmax(self.to_map(self.trunk(x)), dim=-1)


model = MapNet()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

for step in range(args.steps):
    x, density = heatmaps(args.batch)
    with torch.autocast("cpu", dtype=torch.float16):
        predicted = model(x)
        loss = F.mse_loss(predicted, density)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:4d}  loss {loss.item():.4e}")
