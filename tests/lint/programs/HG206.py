"""An unscaled loss: a thousandth of the step before."""

import torch


def train(steps):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (10 * weight).sum()
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
    return weight.item()


def run():
    return abs(train(2) - (-1.0)) < 1e-4
