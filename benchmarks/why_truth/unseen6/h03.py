# multi-task regression with missing labels (NaN in the target table), bf16
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
torch.manual_seed(0)
TASKS = 5


def build(n=3000):
    base = load_diabetes().data
    rows = rng.integers(0, len(base), n)
    x = base[rows] * 20 + rng.normal(0, 0.3, (n, 10))
    w = rng.normal(0, 1, (10, TASKS)) / 3
    y = np.tanh(x @ w) + 0.3 * (x[:, :TASKS] ** 2 - 1) + rng.normal(0, 0.1, (n, TASKS))
    y[rng.random(y.shape) < 0.6] = np.nan
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def masked_mse(pred, target):
    seen = ~torch.isnan(target)
    safe = torch.where(seen, target, torch.zeros_like(target))
    err = (pred.float() - safe) ** 2 * seen
    return err.sum() / seen.sum().clamp(min=1)


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
        self.heads = nn.ModuleList(nn.Linear(96, 1) for _ in range(TASKS))

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([k(h) for k in self.heads], 1)


x, y = build()
train = DataLoader(TensorDataset(x[:2400], y[:2400]), batch_size=48, shuffle=True)
xv, yv = x[2400:], y[2400:]
model = MultiHead()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(8):
    model.train()
    run = []
    for xb, yb in train:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = masked_mse(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.append(loss.item())
    print(f"epoch {epoch} loss {np.mean(run):.4f} (labels missing {torch.isnan(y).float().mean():.2f})")
model.eval()
with torch.no_grad():
    print(f"val_mse {masked_mse(model(xv), yv).item():.4f}")
