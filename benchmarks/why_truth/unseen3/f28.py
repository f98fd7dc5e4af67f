"""Binary-weight MLP for spectra classification."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from f28_ops import binary_linear


def spectra(n, seed, bins=40):
    rng = np.random.default_rng(seed)
    grid = np.arange(bins)
    y = rng.integers(0, 5, n)
    centers = np.array([6, 13, 20, 27, 34])
    x = np.exp(-0.5 * ((grid[None] - centers[y][:, None] - rng.normal(0, 1, (n, 1))) / 2.0) ** 2)
    x = x + 0.25 * rng.standard_normal((n, bins))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class BinaryLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * 0.1)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return binary_linear(x, self.weight, self.bias)


class BinaryMLP(nn.Module):
    def __init__(self, n_in=40, width=48, classes=5):
        super().__init__()
        self.inp = nn.Linear(n_in, width)
        self.hid = nn.ModuleList([BinaryLinear(width, width) for _ in range(2)])
        self.norm = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for lin, norm in zip(self.hid, self.norm):
            h = F.relu(norm(lin(h)))
        return self.out(h)


def evaluate(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(-1) == y).float().mean().item()


def main():
    torch.manual_seed(4)
    x, y = spectra(1500, 0)
    xt, yt = spectra(300, 1)
    model = BinaryMLP()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(150):
        i = torch.randint(0, len(x), (32,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} acc {evaluate(model, xt, yt):.3f}")
    print(f"final test accuracy {evaluate(model, xt, yt):.4f}")


if __name__ == "__main__":
    main()
