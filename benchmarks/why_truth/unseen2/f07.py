"""Multi-epoch regression on a small tabular set; the training of one epoch is its own function."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 16
BATCH = 64


def make_data(n=384, features=16):
    g = torch.Generator().manual_seed(42)
    x = torch.randn(n, features, generator=g)
    w = torch.randn(features, 1, generator=g)
    y = 30.0 + 12.0 * (x @ w) + 5.0 * torch.sin(3 * x[:, :1])
    return TensorDataset(x, y)


class MLP(nn.Module):
    def __init__(self, features=16, hidden=48):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.layers(x)


def train_epoch(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    criterion = nn.MSELoss()
    total, count = 0.0, 0
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
            loss = criterion(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item() * len(x)
        count += len(x)
    return total / count


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        errors = torch.cat([(model(x) - y).abs() for x, y in loader])
    return errors.mean().item()


def main():
    torch.manual_seed(7)
    data = make_data()
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        loss = train_epoch(model, loader, optimizer)
        if epoch % 2 == 0 or epoch == EPOCHS - 1:
            print(f"epoch {epoch:2d}  train loss {loss:.3f}  mean abs error {evaluate(model, loader):.3f}")


if __name__ == "__main__":
    main()
