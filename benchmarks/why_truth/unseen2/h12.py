"""Variational autoencoder in FP16: log-variances are bounded before exp, the KL weight is warmed up."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
INPUT, LATENT, STEPS = 24, 4, 180
mixing = torch.randn(3, INPUT)


def batch(n):
    return torch.randn(n, 3) @ mixing + 0.1 * torch.randn(n, INPUT)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(INPUT, 48), nn.ReLU(), nn.Linear(48, 2 * LATENT))
        self.dec = nn.Sequential(nn.Linear(LATENT, 48), nn.ReLU(), nn.Linear(48, INPUT))

    def forward(self, x):
        mean, logvar = self.enc(x).chunk(2, dim=-1)
        logvar = logvar.clamp(-8.0, 8.0)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        return self.dec(z), mean.float(), logvar.float()


vae = VAE()
optimizer = torch.optim.Adam(vae.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for step in range(STEPS):
    x = batch(32)
    with torch.autocast("cpu", dtype=torch.float16):
        out, mean, logvar = vae(x)
    reconstruction = F.mse_loss(out.float(), x)
    kl = 0.5 * (mean.pow(2) + logvar.exp() - 1 - logvar).sum(-1).mean()
    beta = 0.02 * min(1.0, step / 100)
    loss = reconstruction + beta * kl
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(vae.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f} reconstruction {reconstruction.item():.4f} kl {kl.item():.2f}")
