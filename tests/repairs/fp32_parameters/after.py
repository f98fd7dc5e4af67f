# fp32_parameters()
import torch


def build(model):
    optimizer = torch.optim.AdamW(model.parameters())  # here
    for group in optimizer.param_groups:  # a GradScaler needs FP32 weights
        for parameter in group["params"]:
            parameter.data = parameter.data.float()
    return optimizer
