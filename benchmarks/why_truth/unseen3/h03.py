"""Autoencoder for sensor spectra, FP16, scaler starts very high on purpose."""
import numpy as np
import torch
from torch import nn


def spectra(n, seed):
    rng = np.random.default_rng(seed)
    basis = np.random.default_rng(3).standard_normal((5, 40))
    return torch.tensor(rng.standard_normal((n, 5)) @ basis + 0.1 * rng.standard_normal((n, 40)), dtype=torch.float32)


class AE(nn.Module):
    def __init__(self, n=40, width=48, code=5):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n, width), nn.GELU(), nn.Linear(width, code))
        self.dec = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, n))

    def forward(self, x):
        return self.dec(self.enc(x))


class Stats:
    def __init__(self):
        self.skipped = 0
        self.loss = []

    def note(self, loss, before, after):
        self.loss.append(loss)
        self.skipped += int(after < before)


def main():
    torch.manual_seed(5)
    x, xt = spectra(2000, 0), spectra(400, 1)
    model = AE()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=60)
    stats = Stats()
    for step in range(300):
        xb = x[torch.randint(0, len(x), (48,))]
        with torch.autocast("cpu", dtype=torch.float16):
            rec = model(xb)
            loss = nn.functional.mse_loss(rec, xb)
        opt.zero_grad(set_to_none=True)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        stats.note(loss.item(), before, scaler.get_scale())
        if step < 12 or step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():g} skipped {stats.skipped}")
    with torch.no_grad():
        mse = (model(xt) - xt).pow(2).mean().item()
    print(f"final test mse {mse:.4f}")


if __name__ == "__main__":
    main()
