"""A mask in half: refused before, a softmax after."""

import torch


def attend(scores, mask):
    scores = scores.masked_fill(mask == 0, -1e9)  # hide what is padded
    return torch.softmax(scores, dim=-1)


def run():
    scores = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float16)
    weights = attend(scores, torch.tensor([[1, 1, 0]]))
    return bool(weights.isfinite().all()) and weights[0, 2].item() == 0
