"""Binary-weight classifier trained through a sharpening relaxation."""
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


@dataclass
class Config:
    steps: int = 2400
    batch: int = 32
    lr: float = 1e-3
    sharp: float = 60.0
    dtype: torch.dtype = torch.bfloat16


class Sharpness:
    """Grows the relaxation gain from 1 to cfg.sharp over the run."""

    def __init__(self, cfg):
        self.done = torch.zeros((), dtype=cfg.dtype)
        self.inc = 1.0 / cfg.steps
        self.top = cfg.sharp

    def advance(self):
        self.done += self.inc

    def gain(self):
        return self.top ** self.done.float()


class BinLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(o, i).uniform_(-0.3, 0.3))
        self.scale = nn.Parameter(torch.full((o,), i ** -0.5))
        self.bias = nn.Parameter(torch.zeros(o))

    def forward(self, x, gain):
        w = torch.tanh(gain * self.weight) if self.training else torch.sign(self.weight)
        return F.linear(x, w) * self.scale + self.bias


class BinNet(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.a, self.b = BinLinear(64, hidden), BinLinear(hidden, 10)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x, gain):
        return self.b(F.relu(self.norm(self.a(x, gain))), gain)


def main(cfg):
    torch.manual_seed(40)
    d = load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 8 - 1
    y = torch.tensor(d.target)
    perm = torch.randperm(len(x))
    x, y = x[perm], y[perm]
    net, sharp = BinNet(), Sharpness(cfg)
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        idx = torch.randint(0, 1400, (cfg.batch,))
        with torch.autocast("cpu", dtype=cfg.dtype):
            logits = net(x[idx], sharp.gain())
        loss = F.cross_entropy(logits.float(), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sharp.advance()
        if step % 300 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=cfg.dtype):
        acc = (net(x[1400:], sharp.gain()).argmax(1) == y[1400:]).float().mean().item()
    print(f"val_acc {acc:.4f}")


main(Config())
