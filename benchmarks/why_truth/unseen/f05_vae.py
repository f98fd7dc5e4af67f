"""VAE on binary 12x12 blobs. FP16 autocast + GradScaler."""
import argparse

import torch
import torch.nn as nn


def bernoulli_nll(p, t):
    eps = 1e-8
    ll = t * torch.log(p + eps) + (1 - t) * torch.log(1 - p + eps)
    return -ll.float().sum(dim=1).mean()


class VAE(nn.Module):
    def __init__(self, d=144, h=96, z=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, h), nn.ReLU(), nn.Linear(h, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=-1)
        std = torch.exp(0.5 * logvar)
        z = mu + std * torch.randn_like(std)
        return torch.sigmoid(self.dec(z)), mu, logvar


def blobs(n, gen):
    grid = torch.arange(12)
    cx, cy = torch.randint(3, 9, (n, 1, 1), generator=gen), torch.randint(3, 9, (n, 1, 1), generator=gen)
    r = torch.randint(2, 4, (n, 1, 1), generator=gen)
    img = ((grid[None, :, None] - cx) ** 2 + (grid[None, None, :] - cy) ** 2) <= r ** 2
    return img.float().flatten(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", default=5e-3, type=float)
    parser.add_argument("--steps", default=400, type=int)
    parser.add_argument("--beta", default=0.5, type=float)
    opt = parser.parse_args()

    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    vae = VAE()
    optim = torch.optim.Adam(vae.parameters(), lr=opt.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(opt.steps):
        x = blobs(64, gen)
        with torch.autocast("cpu", dtype=torch.float16):
            recon, mu, logvar = vae(x)
            nll = bernoulli_nll(recon, x)
            kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).float().sum(1).mean()
            loss = nll + opt.beta * kl
        optim.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
        if step % 20 == 0:
            print(f"{step:4d} loss {loss.item():8.3f} nll {nll.item():8.3f} kl {kl.item():7.3f}")


if __name__ == "__main__":
    main()
