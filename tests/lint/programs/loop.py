"""The loop of the rules about its order; the test fills in what follows the loss, and its result."""

import torch


def train(steps):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (10 * weight).sum()
        BODY
    return weight.item()


def run():
    return abs(train(STEPS) - (WEIGHT)) < 1e-4
