"""Multi-output air quality regression; missing measurements are NaN in the targets and inputs."""
import numpy as np
import torch
import torch.nn as nn


def stations(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 8)).astype(np.float32)
    W = np.random.default_rng(1).standard_normal((8, 3))
    y = (np.tanh(x) @ W + 0.1 * rng.standard_normal((n, 3))).astype(np.float32) * 0.5
    y[rng.random((n, 3)) < 0.25] = np.nan
    x[rng.random((n, 8)) < 0.05] = np.nan
    return torch.from_numpy(x), torch.from_numpy(y)


class AirNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3))

    def forward(self, x):
        miss = torch.isnan(x)
        x = torch.where(miss, torch.zeros_like(x), x)
        return self.net(torch.cat([x, miss.float()], dim=-1))


def masked_mse(pred, y):
    ok = ~torch.isnan(y)
    diff = pred.float() - torch.where(ok, y, torch.zeros_like(y))
    se = torch.where(ok, diff, torch.zeros_like(diff)) ** 2
    return se.sum() / ok.sum().clamp(min=1)


def main():
    torch.manual_seed(3)
    x, y = stations(2000, 0)
    xt, yt = stations(500, 5)
    print(f"missing targets {torch.isnan(y).float().mean():.3f} inputs {torch.isnan(x).float().mean():.3f}")
    model = AirNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14)
    for step in range(250):
        i = torch.randint(0, len(x), (40,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = masked_mse(model(x[i]), y[i])
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f} raw target mean {y[i].mean().item():.3f}")
    with torch.no_grad():
        print(f"final test mse {masked_mse(model(xt), yt).item():.4f}")


if __name__ == "__main__":
    main()
