"""Event-rate regression with a memory-light rate activation."""
import torch
import torch.nn as nn
import torch.nn.functional as F

AMP = torch.float16


class Rate(torch.autograd.Function):
    """Positive link that keeps only its input for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 10, x, torch.log1p(torch.exp(x.clamp(max=10))))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return g * e / (1 + e)


class RateNet(nn.Module):
    def __init__(self, i, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(i, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return Rate.apply(self.head(self.trunk(x))).squeeze(-1)


def counts(n, g):
    x = torch.randn(n, 5, generator=g)
    lam = 6 + 8 * torch.sigmoid(1.5 * x[:, 0] + x[:, 1] * x[:, 2]) + 2 * torch.sin(2 * x[:, 3])
    return x, torch.poisson(lam, generator=g), lam


def optimise(model, data, steps, lr):
    x, y, _ = data
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def one(idx):
        with torch.autocast("cpu", dtype=AMP):
            rate = model(x[idx])
        loss = F.mse_loss(rate.float(), y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        return loss.item()

    for step in range(steps):
        v = one(torch.randint(0, len(x), (128,)))
        if step % 100 == 0:
            print(f"step {step} loss {v:.3f}")


def main():
    torch.manual_seed(12)
    g = torch.Generator().manual_seed(12)
    model = RateNet(5)
    optimise(model, counts(8000, g), 1500, 3e-3)
    x, _, lam = counts(2000, g)
    with torch.no_grad(), torch.autocast("cpu", dtype=AMP):
        err = (model(x).float() - lam).abs().mean().item()
    print(f"rate_mae {err:.4f}")


if __name__ == "__main__":
    main()
