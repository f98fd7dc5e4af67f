"""A scaler for a device that is not there turns itself off; one for the CPU scales."""

import torch


def run():
    scaler = torch.amp.GradScaler(init_scale=256.0)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.ones(1, 1, requires_grad=True) @ torch.ones(1, 1)
    return scaler.is_enabled() and scaler.scale(loss.float()).item() == 256.0
