"""Offline RL: advantage weighted regression of a squashed Gaussian policy on logged actions."""
import argparse
import math

import numpy as np
import torch
from torch import nn


def logged_data(n, seed):
    rng = np.random.default_rng(seed)
    s = rng.standard_normal((n, 6)).astype(np.float32)
    k = np.random.default_rng(0).standard_normal((6, 2)) * 0.35
    best = np.tanh(s @ k)
    u = np.arctanh(np.clip(best, -0.999, 0.999)) + 0.25 * rng.standard_normal((n, 2))
    a = np.tanh(u)
    sat = rng.random(n) < 0.002
    a[sat] = np.sign(a[sat])
    reward = -np.square(a - best).sum(1)
    return s, a, reward.astype(np.float32), best.astype(np.float32)


class ReplayBuffer:
    def __init__(self, s, a, r, dtype):
        self.s = torch.as_tensor(s).to(dtype)
        self.a = torch.as_tensor(a).to(dtype)
        adv = (r - r.mean()) / r.std()
        self.w = torch.as_tensor(np.minimum(np.exp(adv), 5.0)).float()

    def sample(self, n, gen):
        i = torch.randint(0, len(self.w), (n,), generator=gen)
        return self.s[i], self.a[i], self.w[i]


class TanhGaussian(nn.Module):
    LOG_STD = (-4.0, 1.0)

    def __init__(self, obs=6, act=2, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mu = nn.Linear(width, act)
        self.log_std = nn.Linear(width, act)

    def forward(self, s):
        h = self.body(s)
        lo, hi = self.LOG_STD
        return self.mu(h), lo + 0.5 * (hi - lo) * (torch.tanh(self.log_std(h)) + 1)

    def log_prob(self, s, a):
        mu, log_std = self(s)
        a = a.clamp(-1 + 1e-6, 1 - 1e-6)
        u = torch.atanh(a)
        z = (u - mu) * torch.exp(-log_std)
        base = -0.5 * z ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        jac = torch.log(1 - a ** 2 + 1e-4)
        return (base - jac).sum(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=500)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=5e-4)
    args = ap.parse_args()
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(12)
    s, a, r, _ = logged_data(4000, 1)
    buf = ReplayBuffer(s, a, r, torch.float16)
    st, at, _, best = logged_data(500, 2)
    pi = TanhGaussian()
    opt = torch.optim.Adam(pi.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    for step in range(1, args.steps + 1):
        sb, ab, w = buf.sample(args.batch, gen)
        with torch.autocast("cpu", dtype=torch.float16):
            lp = pi.log_prob(sb, ab)
            loss = -(w * lp).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        g = nn.utils.clip_grad_norm_(pi.parameters(), 10.0)
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {g.item():.3f} scale {scaler.get_scale():g}")

    with torch.no_grad():
        act = torch.tanh(pi(torch.as_tensor(st))[0])
        err = (act - torch.as_tensor(best)).abs().mean().item()
        nll = -pi.log_prob(torch.as_tensor(st), torch.as_tensor(at).float()).mean().item()
    print(f"action error {err:.4f}")
    print(f"final test nll {nll:.4f}")


if __name__ == "__main__":
    main()
