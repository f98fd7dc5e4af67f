"""A pairwise loss in half: infinite before, exact after."""

import torch


def run():
    score = torch.tensor([-20.0, 0.5], dtype=torch.float16, requires_grad=True)
    loss = -torch.mean(torch.log(torch.sigmoid(score)))
    loss.backward()
    exact = -torch.nn.functional.logsigmoid(score.detach().double()).mean()
    close = abs(loss.item() - exact.item()) < 0.01
    return close and bool(score.grad.isfinite().all())
