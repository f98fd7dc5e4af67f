"""Actor-critic on a noisy bandit with contexts; loss goes up and down by design."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical


class ContextBandit:
    def __init__(self, dim=6, arms=4):
        g = torch.Generator().manual_seed(2)
        self.w = torch.randn(dim, arms, generator=g)
        self.dim = dim

    def context(self, n):
        return torch.randn(n, self.dim)

    def pull(self, x, a):
        mean = (x @ self.w).gather(1, a[:, None]).squeeze(1)
        return mean + 2.0 * torch.randn_like(mean)

    def regret(self, x, a):
        r = x @ self.w
        return (r.max(1).values - r.gather(1, a[:, None]).squeeze(1)).mean().item()


class ActorCritic(nn.Module):
    def __init__(self, dim, arms):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 32), nn.Tanh())
        self.pi = nn.Linear(32, arms)
        self.v = nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h).float(), self.v(h).float().squeeze(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=250)
    p.add_argument("--amp", type=int, default=1)
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    amp = bool(args.amp)
    env = ContextBandit()
    net = ActorCritic(6, 4).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=amp)
    losses = []
    for u in range(args.updates):
        x = env.context(64)
        with torch.autocast(device, dtype=torch.float16, enabled=amp):
            logits, v = net(x.to(device))
        dist = Categorical(logits=logits)
        a = dist.sample()
        r = env.pull(x, a.cpu()).to(device)
        adv = (r - v).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        loss = -(dist.log_prob(a) * adv).mean() + 0.5 * F.mse_loss(v, r) - 0.01 * dist.entropy().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        losses.append(loss.item())
        if (u + 1) % 50 == 0:
            with torch.no_grad():
                xe = env.context(1000)
                reg = env.regret(xe, net(xe.to(device))[0].argmax(1).cpu())
            print(f"update {u + 1} loss {losses[-1]:.3f} greedy_regret {reg:.3f}")


if __name__ == "__main__":
    main()
