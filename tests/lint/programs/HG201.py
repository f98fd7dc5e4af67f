"""Clipping to norm 1 at rate 0.1: no movement before, 0.1 after."""

import torch


def train(steps):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (10 * weight).sum()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0)  # at most 1
        scaler.step(optimizer)
        scaler.update()
    return weight.item()


def run():
    return abs(train(1) - 0.9) < 1e-4
