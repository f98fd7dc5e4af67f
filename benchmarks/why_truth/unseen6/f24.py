"""Load forecasting with a GRU; one fit_epoch call per pass over the windows."""
import math
import torch
from torch import nn

torch.manual_seed(17)
AMP_DTYPE = torch.float16
CTX, OUT = 24, 12


def load_curve(n):
    t = torch.arange(n).float()
    day = 40 * torch.sin(2 * math.pi * t / 24) + 15 * torch.sin(2 * math.pi * t / 12 + 1)
    week = 20 * torch.sin(2 * math.pi * t / 168)
    noise = torch.zeros(n)
    eps = torch.randn(n) * 3
    for k in range(1, n):
        noise[k] = 0.8 * noise[k - 1] + eps[k]
    return 60 + day + week + noise


def windows(series):
    w = series.unfold(0, CTX + OUT, 1)
    return w[:, :CTX], w[:, CTX:]


class Forecaster(nn.Module):
    def __init__(self, mu, sd, width=64):
        super().__init__()
        self.mu, self.sd = mu, sd
        self.enc = nn.Sequential(nn.Linear(CTX, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.dec = nn.Linear(width, OUT)

    def forward(self, x):
        z = (x - self.mu) / self.sd
        return self.dec(self.enc(z)) * self.sd + self.mu


def fit_epoch(model, x, y, opt, sched, batch=256):
    scaler = torch.amp.GradScaler("cpu")
    model.train()
    losses = []
    for idx in torch.randperm(len(x)).split(batch):
        with torch.autocast("cpu", dtype=AMP_DTYPE):
            pred = model(x[idx])
        loss = (pred.float() - y[idx]).square().sum(1).mean()
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
    sched.step()
    return sum(losses) / len(losses)


def mae(model, x, y):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=AMP_DTYPE):
        return (model(x).float() - y).abs().mean().item()


def main(epochs=60):
    s = load_curve(2600)
    x, y = windows(s[:2000])
    xv, yv = windows(s[2000:])
    model = Forecaster(s[:2000].mean(), s[:2000].std())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    for e in range(epochs):
        avg = fit_epoch(model, x, y, opt, sched)
        if e % 6 == 0:
            print(f"epoch {e} loss {avg:.3f} val {mae(model, xv, yv):.3f}")
    print(f"val_mae {mae(model, xv, yv):.4f}")


if __name__ == "__main__":
    main()
