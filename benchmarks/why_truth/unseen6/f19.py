"""Advantage actor-critic on a batch of 1-D point-mass tasks, with micro-batches."""
import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(1)
AMP = torch.float16
HORIZON, ENVS, MICRO = 16, 64, 4


class PointMass:
    def __init__(self, n):
        self.n = n

    def reset(self):
        self.pos = torch.empty(self.n).uniform_(-1, 1)
        self.vel = torch.zeros(self.n)
        return self.obs()

    def obs(self):
        return torch.stack([self.pos, self.vel], 1)

    def step(self, action):
        self.vel = 0.8 * self.vel + 0.1 * (action.float() - 1)
        self.pos = (self.pos + self.vel).clamp(-2, 2)
        return self.obs(), -self.pos.abs()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi, self.v = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


@torch.no_grad()
def rollout(net, env):
    obs, batch = env.reset(), []
    for _ in range(HORIZON):
        with torch.autocast("cpu", dtype=AMP):
            logits, _ = net(obs)
        act = Categorical(logits=logits.float()).sample()
        nxt, rew = env.step(act)
        batch.append((obs, act, rew))
        obs = nxt
    ret, out = torch.zeros(env.n), []
    for o, a, r in reversed(batch):
        ret = r + 0.9 * ret
        out.append((o, a, ret))
    o, a, g = (torch.cat(z) for z in zip(*out))
    return o, a, g, sum(b[2].mean().item() for b in batch)


def objective(net, o, a, g):
    with torch.autocast("cpu", dtype=AMP):
        logits, v = net(o)
    v = v.float()
    dist = Categorical(logits=logits.float())
    adv = (g - v).detach()
    return -(dist.log_prob(a) * adv).mean() + 0.5 * (g - v).square().mean() - 0.005 * dist.entropy().mean()


def learn(iters=150):
    net, env = ActorCritic(), PointMass(ENVS)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    history = []
    for it in range(iters):
        o, a, g, score = rollout(net, env)
        history.append(score)
        opt.zero_grad()
        for idx in torch.randperm(len(o)).chunk(MICRO):
            loss = objective(net, o[idx], a[idx], g[idx]) / MICRO
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        if it % 25 == 0:
            print(f"iter {it} return {score:.3f} loss {loss.item():.4f}")
    return sum(history[-20:]) / 20


print(f"mean_return {learn():.4f}")
