# smaller_masks()
import torch


def bias(q, padding, causal):
    low = (torch.finfo(q.dtype).min / 4)
    return padding * low + causal * low  # here
