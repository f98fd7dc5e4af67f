"""Interval-censored survival: the event fell between two visits, so the likelihood is a difference of two CDFs."""
import torch
import torch.nn as nn


class LogLogisticAFT(nn.Module):
    """Accelerated failure time model with log-logistic errors."""

    def __init__(self, n_cov=10, hidden=40):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(n_cov, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU())
        self.loc = nn.Linear(hidden, 1)
        self.shape = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.backbone(x)
        loc = self.loc(h).squeeze(-1)
        inv_scale = 1.0 + torch.sigmoid(self.shape(h)).squeeze(-1)
        return loc, inv_scale


def interval_nll(loc, inv_scale, log_left, edges):
    left = log_left.to(loc.dtype) - loc
    mass = torch.sigmoid((left[:, None] + edges) * inv_scale[:, None]).diff(dim=-1).squeeze(-1)  # guilty
    return -torch.log(mass + 1e-3)


def loss_fn(model, batch):
    loc, inv_scale = model(batch["x"])
    nll = interval_nll(loc, inv_scale, batch["log_left"], batch["edges"].to(loc.dtype))
    weight = batch["weight"]
    return (weight * nll).sum() / weight.sum()


def make():
    torch.manual_seed(53)
    model = LogLogisticAFT()
    B = 64
    batch = {
        "x": torch.randn(B, 10),
        "log_left": torch.round(torch.randn(B) * 256) / 256 + 0.5,
        "edges": torch.tensor([0.0, 2.0 ** -5]),  # visits a few days apart, on the log-time axis
        "weight": 0.5 + torch.rand(B),
    }
    return model, loss_fn, batch
