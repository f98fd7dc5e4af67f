"""Soft actor-critic policy update: tanh-squashed Gaussian with the change-of-variables correction."""
import math

import torch
import torch.nn as nn


class Actor(nn.Module):
    def __init__(self, obs_dim=11, act_dim=3, hidden=64):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(obs_dim, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
        )
        self.mu = nn.Linear(hidden, act_dim)
        self.raw_std = nn.Linear(hidden, act_dim)

    def forward(self, obs, noise):
        h = self.trunk(obs)
        mu = self.mu(h)
        std = 0.05 + 0.5 * torch.sigmoid(self.raw_std(h))
        u = mu + std * noise.to(mu.dtype)
        action = torch.tanh(u)
        logp = -0.5 * noise.pow(2) - torch.log(std) - 0.5 * math.log(2 * math.pi)
        return u, action, logp


class Critic(nn.Module):
    def __init__(self, obs_dim=11, act_dim=3, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim + act_dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, obs, action):
        return self.net(torch.cat([obs, action], dim=-1)).squeeze(-1)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = Actor()
        self.critic = Critic()
        for p in self.critic.parameters():
            p.requires_grad_(False)
        with torch.no_grad():  # a policy that has learnt to push against the action limits
            self.actor.mu.bias.copy_(torch.tensor([3.8, -4.0, 3.7]))

    def forward(self, obs, noise):
        u, action, logp = self.actor(obs, noise)
        correction = torch.log(1.0 - torch.tanh(u) * torch.tanh(u) + 1e-3)  # guilty
        logp = (logp - correction).sum(dim=-1)
        return logp, self.critic(obs, action)


def loss_fn(model, batch, alpha=0.2):
    logp, q = model(batch["obs"], batch["noise"])
    return (alpha * logp - q).mean()


def make():
    torch.manual_seed(11)
    model = Agent()
    batch = {"obs": torch.randn(64, 11), "noise": torch.randn(64, 3)}
    return model, loss_fn, batch
