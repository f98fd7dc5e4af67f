"""Load forecasting: per-channel exponential moving averages with slow decay feed a small head. Trained in BF16."""
import torch
import torch.nn as nn
import torch.nn.functional as F

PRECISION = "bfloat16"


class SlowMemory(nn.Module):
    """Runs m <- (1 - a) m + a z over the window, in the activations' dtype."""

    def __init__(self, dim):
        super().__init__()
        self.register_buffer("alpha", torch.tensor([2.0 ** -(5 + i % 4) for i in range(dim)]))

    def forward(self, z, start):
        a = self.alpha.to(z.dtype)
        m = start.to(z.dtype)
        for t in range(z.shape[1]):
            m = m + a * (z[:, t] - m)  # guilty
        return m


class LoadForecaster(nn.Module):
    def __init__(self, n_in=8, dim=24, horizon=12):
        super().__init__()
        self.encode = nn.Linear(n_in, dim)
        self.memory = SlowMemory(dim)
        self.head = nn.Sequential(nn.Linear(2 * dim, 48), nn.GELU(), nn.Linear(48, horizon))

    def forward(self, history, start):
        z = self.encode(history)
        slow = self.memory(z, start)
        drift = slow - start
        return self.head(torch.cat([4.0 * drift, z[:, -1]], dim=-1))


def loss_fn(model, batch):
    pred = model(batch["history"], batch["start"])
    return F.mse_loss(pred, batch["future"])


def make():
    torch.manual_seed(5)
    model = LoadForecaster()
    B, T = 12, 128
    with torch.no_grad():
        model.encode.bias.add_(2.2)
    history = torch.randn(B, T, 8).cumsum(dim=1) * 0.05 + 0.3
    batch = {
        "history": history,
        "start": torch.full((B, 24), 2.0),
        "future": torch.randn(B, 12) * 0.5,
    }
    return model, loss_fn, batch
