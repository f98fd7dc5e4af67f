"""VAE: logits and softplus, clamped log variance, KL warm-up, losses in FP32."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvVAE(nn.Module):
    def __init__(self, z=6):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(100, 80), nn.ReLU())
        self.mu, self.logvar = nn.Linear(80, z), nn.Linear(80, z)
        self.dec = nn.Sequential(nn.Linear(z, 80), nn.ReLU(), nn.Linear(80, 100))

    def forward(self, x):
        h = self.enc(x)
        mu = self.mu(h).float()
        logvar = self.logvar(h).float().clamp(-8, 8)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.dec(z), mu, logvar


def stripes(n, g):
    phase = torch.randint(0, 5, (n, 1, 1), generator=g)
    horizontal = torch.rand(n, 1, 1, generator=g) < 0.5
    r = torch.arange(10)
    a = ((r[None, :, None] + phase) % 5 < 2).expand(n, 10, 10)
    b = ((r[None, None, :] + phase) % 5 < 2).expand(n, 10, 10)
    return torch.where(horizontal, a, b).float().flatten(1)


def elbo(logits, x, mu, logvar, beta):
    nll = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return nll + beta * kl, nll, kl


def main(steps=300):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    vae = ConvVAE()
    opt = torch.optim.Adam(vae.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(steps):
        x = stripes(64, g)
        beta = min(1.0, step / 150)
        with torch.autocast("cpu", dtype=torch.float16):
            logits, mu, logvar = vae(x)
        loss, nll, kl = elbo(logits, x, mu, logvar, beta)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 30 == 0:
            print(f"{step} loss {loss.item():.3f} nll {nll.item():.3f} kl {kl.item():.3f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
