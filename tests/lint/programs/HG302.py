"""A step skipped by hand: the next unscale_ is refused before, and the scale falls after."""

import torch


def train():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((factor * weight).sum()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        if not torch.isfinite(norm):
            continue
        scaler.step(optimizer)
        scaler.update()
    return weight.item(), scaler.get_scale()


def run():
    weight, scale = train()
    return abs(weight - 0.9) < 1e-4 and scale == 512.0
