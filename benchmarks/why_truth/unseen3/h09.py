"""Insurance claims (amounts up to several millions): log transform, Huber loss, FP16."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def claims(n, seed):
    rng = np.random.default_rng(seed)
    value = rng.lognormal(11, 1.2, n)
    age = rng.integers(18, 90, n)
    region = rng.integers(0, 6, n)
    amount = value * 0.05 * np.exp(0.02 * (age - 50) + 0.2 * region + 0.3 * rng.standard_normal(n))
    x = np.column_stack([value, age, np.eye(6)[region]]).astype(np.float32)
    return torch.from_numpy(x), torch.tensor(amount, dtype=torch.float32)


class Prep(nn.Module):
    """float32 preprocessing: raw amounts never reach half precision"""

    def __init__(self, x):
        super().__init__()
        z = self.raw(x)
        self.register_buffer("mean", z.mean(0))
        self.register_buffer("std", z.std(0).clamp(min=1e-3))

    @staticmethod
    def raw(x):
        return torch.cat([torch.log1p(x[:, :1]), x[:, 1:]], dim=1)

    def forward(self, x):
        return (self.raw(x.float()) - self.mean) / self.std


class ClaimNet(nn.Module):
    def __init__(self, prep, width=32):
        super().__init__()
        self.prep = prep
        self.net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(self.prep(x)).squeeze(-1)


def main():
    torch.manual_seed(0)
    x, amt = claims(3000, 0)
    xt, amt_t = claims(600, 1)
    print(f"largest value {x.max().item():.0f} largest claim {amt.max().item():.0f}")
    model = ClaimNet(Prep(x))
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(300):
        i = torch.randint(0, len(x), (48,))
        with torch.autocast("cpu", dtype=torch.float16):
            pred = model(x[i])
        loss = F.huber_loss(pred.float(), torch.log1p(amt[i]))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 25 == 0:
            with torch.no_grad():
                money = (torch.expm1(pred.float()) - amt[i]).pow(2).mean().item()
            print(f"step {step} loss {loss.item():.4f} mse in currency {money:.3e} scale {scaler.get_scale():g}")
    with torch.no_grad():
        err = (model(xt).float() - torch.log1p(amt_t)).abs().mean().item()
    print(f"final log error {err:.4f}")


if __name__ == "__main__":
    main()
