"""REINFORCE on a corridor task with a compact rollout buffer."""
import argparse

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Corridor:
    """Agents start in the middle of a line and must walk right; the episode is 8 moves long."""
    def __init__(self, n, length=8):
        self.n, self.length = n, length

    def reset(self):
        self.pos = torch.zeros(self.n)
        self.t = 0
        return self.obs()

    def obs(self):
        return torch.stack([self.pos / self.length, torch.full((self.n,), self.t / self.length)], 1)

    def step(self, a):
        self.pos = self.pos + (a.float() * 2 - 1)
        self.t += 1
        done = self.t >= self.length
        reward = (self.pos >= self.length).float() + 0.1 * (a == 1).float()
        return self.obs(), reward, done


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x):
        return Categorical(logits=self.body(x).float())


class Buffer:
    def __init__(self, dtype):
        self.dtype = dtype
        self.logp, self.rew = [], []

    def add(self, logp, r):
        self.logp.append(logp)
        self.rew.append(r.to(self.dtype))

    def advantages(self):
        returns = torch.stack(self.rew).sum(0)
        return (returns - returns.mean()) / (returns.std() + 1e-8)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=80)
    p.add_argument("--envs", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--buffer-dtype", default="float16")
    args = p.parse_args()
    torch.manual_seed(3)
    env, policy = Corridor(args.envs), Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=args.lr)
    for u in range(args.updates):
        buf = Buffer(getattr(torch, args.buffer_dtype))
        obs, done = env.reset(), False
        while not done:
            dist = policy(obs)
            a = dist.sample()
            logp = dist.log_prob(a)
            obs, r, done = env.step(a)
            buf.add(logp, r)
        adv = buf.advantages().float()
        loss = -(torch.stack(buf.logp).sum(0) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (u + 1) % 10 == 0:
            ret = torch.stack(buf.rew).float().sum(0).mean().item()
            print(f"update {u + 1} return {ret:.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
