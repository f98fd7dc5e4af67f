"""A raw step on scaled gradients: a thousand times too far before."""

import torch


def train(steps):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (10 * weight).sum()
        scaler.scale(loss).backward()
        optimizer.step()
        scaler.update()
    return weight.item()


def run():
    return abs(train(1) - 0.0) < 1e-4
