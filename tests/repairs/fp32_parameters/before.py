# fp32_parameters()
import torch


def build(model):
    optimizer = torch.optim.AdamW(model.parameters())  # here
    return optimizer
