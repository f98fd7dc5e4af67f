"""VAE on bag-of-pixels digits; log-variance clamp, KL in float32, beta warm-up from zero."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def glyphs(n, seed):
    rng = np.random.default_rng(seed)
    proto = np.random.default_rng(9).random((10, 64)) < 0.35
    x = proto[rng.integers(0, 10, n)] ^ (rng.random((n, 64)) < 0.04)
    return torch.tensor(x, dtype=torch.float32)


class VAE(nn.Module):
    def __init__(self, d=64, width=64, z=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, width), nn.ReLU(), nn.Linear(width, d))

    def forward(self, x):
        mu, logvar = self.enc(x).float().chunk(2, dim=-1)
        logvar = logvar.clamp(-12.0, 8.0)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.dec(z), mu, logvar


def elbo(logits, x, mu, logvar, beta):
    rec = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="sum") / len(x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / len(x)
    return rec + beta * kl, rec, kl


def main():
    torch.manual_seed(0)
    x, xt = glyphs(2000, 0), glyphs(300, 1)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(260):
        beta = min(1.0, step / 120)
        xb = x[torch.randint(0, len(x), (32,))]
        with torch.autocast("cpu", dtype=torch.float16):
            logits, mu, logvar = model(xb)
            loss, rec, kl = elbo(logits, xb, mu, logvar, beta)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} beta {beta:.2f} loss {loss.item():.3f} rec {rec.item():.3f} kl {kl.item():.3f} scale {scaler.get_scale():g}")
    torch.manual_seed(1)
    with torch.no_grad():
        logits, mu, logvar = model(xt)
        print(f"final test -elbo {elbo(logits, xt, mu, logvar, 1.0)[0].item():.3f}")


if __name__ == "__main__":
    main()
