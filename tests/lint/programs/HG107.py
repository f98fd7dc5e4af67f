"""BCE of a confident mistake: the wrong loss before, the right one after."""

import torch
import torch.nn.functional as F


def run():
    weight = torch.tensor([[20.0]], requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = F.linear(torch.ones(1, 1), weight)
        loss = F.binary_cross_entropy(torch.sigmoid(logits), torch.zeros(1, 1))
    loss.backward()
    return abs(loss.item() - 20.0) < 0.1 and weight.grad.item() > 0.9
