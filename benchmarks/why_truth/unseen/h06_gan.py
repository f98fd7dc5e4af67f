"""GAN on an 8-dim Gaussian: two optimizers, one scaler, stepped and updated in the right order."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(d_in, d_out, width=48):
    return nn.Sequential(nn.Linear(d_in, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
                         nn.Linear(width, d_out))


class GAN:
    def __init__(self, lr):
        self.gen, self.disc = mlp(6, 8), mlp(8, 1)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=lr, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.disc.parameters(), lr=2 * lr, betas=(0.5, 0.99))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 15)

    def d_step(self, real):
        with torch.autocast("cpu", dtype=torch.float16):
            fake = self.gen(torch.randn(len(real), 6)).detach()
            d_real, d_fake = self.disc(real), self.disc(fake)
        loss = F.softplus(-d_real.float()).mean() + F.softplus(d_fake.float()).mean()
        self.opt_d.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_d)
        return loss.item()

    def g_step(self, n):
        with torch.autocast("cpu", dtype=torch.float16):
            score = self.disc(self.gen(torch.randn(n, 6)))
        loss = F.softplus(-score.float()).mean()
        self.opt_g.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_g)
        return loss.item()


@torch.no_grad()
def gap(gan, mean):
    return (gan.gen(torch.randn(512, 6)).mean(0) - mean).norm().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--lr", type=float, default=6e-4)
    args = ap.parse_args()
    torch.manual_seed(0)
    mean = torch.linspace(-2, 2, 8)
    gan = GAN(args.lr)
    for step in range(args.steps):
        real = mean + 0.5 * torch.randn(64, 8)
        d = gan.d_step(real)
        g = gan.g_step(64)
        gan.scaler.update()
        if step % 30 == 0:
            print(f"step {step} d {d:.3f} g {g:.3f} distance of means {gap(gan, mean):.3f}")


if __name__ == "__main__":
    main()
