"""GRU regression of a damped oscillator with a hand-written log-cosh loss."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)


class LogCosh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.abs()
        return a + F.softplus(-2 * a) - math.log(2.0)

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        e, ei = torch.exp(x), torch.exp(-x)
        return grad_out * (e - ei) / (e + ei)


log_cosh = LogCosh.apply


class SeqReg(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h[:, -1]).squeeze(-1)


def oscillators(n, g):
    t = torch.linspace(0, 1, 25)
    amp = torch.rand(n, generator=g) * 2.0
    f = 1 + 2 * torch.rand(n, generator=g)
    d = 3 * torch.rand(n, generator=g)
    x = amp[:, None] * torch.exp(-d[:, None] * t) * torch.sin(2 * math.pi * f[:, None] * t)
    energy = 8.0 * amp * f / (1 + d)
    return (x + 0.02 * torch.randn(n, 25, generator=g)).unsqueeze(-1), energy


def evaluate(model, x, y):
    with torch.no_grad():
        return (model(x) - y).abs().mean().item()


def main():
    g = torch.Generator().manual_seed(4)
    x, y = oscillators(2000, g)
    xv, yv = oscillators(500, g)
    model = SeqReg()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    bs = 100
    for epoch in range(8):
        perm = torch.randperm(len(x))
        run = 0.0
        for i in range(0, len(x), bs):
            b = perm[i:i + bs]
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                pred = model(x[b])
                loss = log_cosh(pred - y[b].to(pred.dtype)).float().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            run += loss.item() * len(b)
        print(f"epoch {epoch} train {run / len(x):.4f}")
    print(f"val_mae {evaluate(model, xv, yv):.4f}")


main()
