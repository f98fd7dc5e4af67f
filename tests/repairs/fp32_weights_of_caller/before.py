# fp32_weights(dtype="float16", callers=(caller,))
import torch


def build(dtype=torch.float32):
    return Net().to(dtype)  # here


net = build(dtype=torch.float16)  # caller
