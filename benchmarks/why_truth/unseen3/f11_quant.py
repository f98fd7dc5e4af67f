import torch
import torch.nn as nn
import torch.nn.functional as F


class GumbelSelector(nn.Module):
    """Soft feature selection: k selectors over n inputs, annealed towards one-hot."""

    def __init__(self, n, k, tau_start=3.0, tau_end=0.1, rate=0.9975):
        super().__init__()
        self.logits = nn.Parameter(0.01 * torch.randn(k, n))
        self.register_buffer("tau", torch.tensor(tau_start))
        self.tau_end = tau_end
        self.rate = rate

    def anneal(self):
        self.tau.mul_(self.rate).clamp_(min=self.tau_end)

    def forward(self, x):
        if self.training:
            g = -torch.log(-torch.log(torch.rand(self.logits.shape).clamp(1e-6, 1 - 1e-6)))
            w = F.softmax((self.logits.float() + g) / self.tau.float(), dim=-1)
        else:
            w = F.one_hot(self.logits.argmax(-1), self.logits.size(1)).float()
        return x @ w.to(x.dtype).t()
