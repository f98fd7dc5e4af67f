"""Sensor regression with a hand-written feature normalisation (half model, FP32 optimizer copy)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MomentNorm(nn.Module):
    """Normalise over features with one pass: var = E[x^2] - E[x]^2."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        mean_sq = (x * x).mean(dim=-1, keepdim=True)
        var = mean_sq - mean * mean
        return (x - mean) / torch.sqrt(var + self.eps) * self.weight + self.bias


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_in = MomentNorm(24)
        self.l1 = nn.Linear(24, 64)
        self.norm_h = MomentNorm(64)
        self.l2 = nn.Linear(64, 1)

    def forward(self, x):
        h = F.gelu(self.l1(self.norm_in(x)))
        return self.l2(self.norm_h(h)).squeeze(-1)


class Sensors:
    """Pressure sensors: an offset of about 30 and a small signal."""

    def __init__(self, seed=0):
        self.g = torch.Generator().manual_seed(seed)
        self.w = torch.randn(24, generator=self.g)

    def batch(self, n):
        signal = torch.randn(n, 24, generator=self.g) * (0.05 + torch.rand(n, 1, generator=self.g))
        y = torch.tanh(signal @ self.w)
        return signal + 30.0 + 2 * torch.rand(n, 1, generator=self.g), y


def train(steps=200, batch_size=64):
    torch.manual_seed(0)
    data = Sensors()
    model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)
    running = None
    for step in range(steps):
        x, y = data.batch(batch_size)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x.half())
            loss = F.smooth_l1_loss(pred.float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        if step % 20 == 0:
            print(f"step {step} running loss {running:.4f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    train()
