"""Two optimizers and a gradient penalty: the norm of a gradient of zero has no gradient."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--zero-at", type=int, default=3)
options = parser.parse_args()

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8))
critic = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
c_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)


def penalty(x):
    x = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return ((grad.square().sum(-1).sqrt() - 1) ** 2).mean()  # culprit


for step in range(options.steps):
    if step == options.zero_at:
        with torch.no_grad():
            critic[0].weight.zero_()
    fake = generator(torch.randn(4, 4))
    loss = critic(fake.detach()).mean() - critic(torch.randn(4, 8)).mean()
    loss = loss + penalty(fake)
    c_optimizer.zero_grad()
    loss.backward()
    c_optimizer.step()
    g_optimizer.zero_grad()
    (-critic(generator(torch.randn(4, 4))).mean()).backward()
    g_optimizer.step()
