"""Log-probabilities in half: -inf before, finite after."""

import torch
from torch.nn import functional


def run():
    logits = torch.tensor([[20.0, -10.0]], dtype=torch.float16, requires_grad=True)
    target = torch.tensor([1])
    loss = functional.nll_loss(torch.log(torch.softmax(logits, dim=-1)).float(), target)
    loss.backward()
    return abs(loss.item() - 30.0) < 0.1 and bool(logits.grad.isfinite().all())
