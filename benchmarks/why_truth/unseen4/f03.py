"""WGAN-style training on a ring of Gaussians with several critic steps per generator step."""
import argparse
import math

import torch
import torch.nn as nn


def sample_ring(n, modes=8, radius=2.0, std=0.05):
    k = torch.randint(0, modes, (n,)).float()
    ang = 2 * math.pi * k / modes
    centre = torch.stack([ang.cos(), ang.sin()], dim=1) * radius
    return centre + std * torch.randn(n, 2)


def mlp(i, o, h=64):
    return nn.Sequential(nn.Linear(i, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, o))


class GanTrainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.G = mlp(args.z_dim, 2).to(device)
        self.D = mlp(2, 1).to(device)
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=args.lr, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=args.lr, betas=(0.5, 0.9))
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=args.fp16)

    def autocast(self):
        return torch.autocast(self.device, dtype=torch.float16, enabled=self.args.fp16)

    def noise(self, n):
        return torch.randn(n, self.args.z_dim, device=self.device)

    def critic_step(self, real):
        self.opt_d.zero_grad()
        with self.autocast():
            fake = self.G(self.noise(real.size(0))).detach()
            loss = torch.relu(1 - self.D(real)).mean() + torch.relu(1 + self.D(fake)).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt_d)
        nn.utils.clip_grad_norm_(self.D.parameters(), 5.0)
        self.scaler.step(self.opt_d)
        return loss.item()

    def gen_step(self, n):
        self.opt_g.zero_grad()
        with self.autocast():
            loss = -self.D(self.G(self.noise(n))).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt_g)
        nn.utils.clip_grad_norm_(self.G.parameters(), 5.0)
        self.scaler.step(self.opt_g)
        return loss.item()

    def fit(self):
        for it in range(self.args.iters):
            # warm start: one critic step per generator step, then n_critic of them
            steps = 1 if it < self.args.warmup else self.args.n_critic
            for _ in range(steps):
                ld = self.critic_step(sample_ring(self.args.batch).to(self.device))
            lg = self.gen_step(self.args.batch)
            self.scaler.update()
            if (it + 1) % 100 == 0:
                print(f"it {it + 1} d {ld:.3f} g {lg:.3f} radius_err {self.radius_error():.3f}")

    @torch.no_grad()
    def radius_error(self):
        x = self.G(self.noise(1024)).float()
        return (x.norm(dim=1) - 2.0).abs().mean().item()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=300)
    p.add_argument("--n_critic", type=int, default=2)
    p.add_argument("--warmup", type=int, default=50)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--z_dim", type=int, default=8)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--fp32", dest="fp16", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    GanTrainer(args, "cuda" if torch.cuda.is_available() else "cpu").fit()
