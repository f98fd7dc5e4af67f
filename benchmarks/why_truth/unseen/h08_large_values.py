"""House prices: activations of tens of thousands in half (below its maximum), predictions of thousands."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class PriceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(10, 64)
        self.mid = nn.Linear(64, 64)
        self.out = nn.Linear(64, 1)
        self.register_buffer("gain", torch.tensor(9000.0))

    def forward(self, x):
        h = torch.relu(self.inp(x))
        h = torch.relu(self.mid(h))
        wide = (h * self.gain.to(h.dtype)).clamp(max=60000.0)
        return self.out(wide / 9000.0).float().squeeze(-1) * 1000.0


def houses(n=1024):
    g = torch.Generator().manual_seed(30)
    x = torch.randn(n, 10, generator=g)
    price = 3000 + 900 * torch.tanh(x[:, 0]) + 500 * x[:, 1] * torch.sigmoid(x[:, 2])
    return TensorDataset(x, price)


def fit(epochs=8):
    torch.manual_seed(0)
    model = PriceNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=40)
    loader = DataLoader(houses(), batch_size=64, shuffle=True)
    for epoch in range(epochs):
        total, top = 0.0, 0.0
        for x, price in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                pred = model(x)
            loss = ((pred - price) / 1000.0).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
            top = max(top, pred.abs().max().item())
        print(f"epoch {epoch} rmse {1000 * (total / len(loader)) ** 0.5:.1f} largest prediction {top:.0f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    fit()
