# mypy: ignore-errors
"""Forecast the next return from a window of prices near 30,000, which is cast to half to save memory."""

import torch
from torch import nn
from torch.nn import functional


class Forecast(nn.Module):
    def __init__(self, window=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(window - 1, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, prices):
        prices = prices.half()  # guilty
        returns = (prices[:, 1:] - prices[:, :-1]) / 2
        return self.net(returns)


def series(count):
    noise, returns = torch.randn(count) * 2, [0.0, 0.0]
    for t in range(2, count):
        returns.append(0.9 * returns[t - 1] - 0.4 * returns[t - 2] + float(noise[t]))
    return 30000 + torch.cumsum(torch.tensor(returns), 0)


def main():
    torch.manual_seed(0)
    prices, model = series(4000), Forecast()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(200):
        start = torch.randint(0, 3970, (64, 1))
        window = prices[start + torch.arange(25)]
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(window[:, :-1])
        loss = functional.mse_loss(out.float(), (window[:, -1:] - window[:, -2:-1]) / 2)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 50 == 49:
            print(f"{step} {loss.item():.4f}")


main()
