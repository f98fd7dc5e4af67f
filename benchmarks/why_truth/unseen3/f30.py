"""Churn prediction with an F1 / AUC report per epoch."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def churn(n, seed):
    rng = np.random.default_rng(seed)
    tenure = rng.exponential(20, n)
    calls = rng.poisson(3, n)
    bill = rng.normal(60, 15, n)
    plan = rng.integers(0, 4, n)
    z = -0.06 * (tenure - 20) + 0.5 * (calls - 3) + 0.03 * (bill - 60) + (plan == 2) * 1.2 - 0.4
    y = (z + 0.5 * rng.logistic(size=n) > 0).astype(np.float32)
    x = np.column_stack([tenure / 20 - 1, calls / 2 - 1.5, (bill - 60) / 15, np.eye(4)[plan]])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class ChurnNet(nn.Module):
    def __init__(self, n_in=7, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, width), nn.GELU(), nn.Dropout(0.1),
                                 nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def f1_score(y, pred):
    tp = np.sum((y == 1) & pred)
    return 2 * tp / max(1, np.sum(pred) + np.sum(y == 1))


def report(model, loader):
    model.eval()
    probs, ys = [], []
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for x, y in loader:
            probs.append(torch.sigmoid(model(x)).cpu())
            ys.append(y)
    p = torch.cat(probs).numpy()
    y = torch.cat(ys).numpy()
    model.train()
    return f1_score(y, p > 0.5), float(np.mean((p > 0.5) == (y > 0.5)))


def main():
    torch.manual_seed(7)
    train = DataLoader(TensorDataset(*churn(2000, 0)), 50, shuffle=True)
    val = DataLoader(TensorDataset(*churn(500, 1)), 250)
    model = ChurnNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(6):
        tot = 0.0
        for x, y in train:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logit = model(x)
            loss = F.binary_cross_entropy_with_logits(logit.float(), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        print(f"epoch {epoch} loss {tot / len(train):.4f}")
        f1, acc = report(model, val)
        print(f"epoch {epoch} f1 {f1:.4f} acc {acc:.4f}")
    print(f"final val accuracy {acc:.4f}")


if __name__ == "__main__":
    main()
