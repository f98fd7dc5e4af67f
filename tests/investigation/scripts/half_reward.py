"""A policy whose rewards are normalized in FP16: the variance overflows, and every reward is 0."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
values = torch.linspace(-1, 1, 4, dtype=torch.float16)


def reward(actions):
    with torch.no_grad():
        scores = values[actions] * 4000
        centered = scores - scores.mean()
        scaled = centered / torch.sqrt((centered**2).mean() + 1e-3)  # culprit
    return scaled.float().tolist()


for _ in range(12):
    policy = torch.distributions.Categorical(logits=net(torch.randn(16, 8)))
    actions = policy.sample()
    loss = -(policy.log_prob(actions) * torch.tensor(reward(actions))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
