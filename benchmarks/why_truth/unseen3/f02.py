"""House price regression on tabular data, whole network in half precision."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 7
EPOCHS = 8
BATCH = 128


def synth_housing(n=2400, seed=SEED):
    rng = np.random.default_rng(seed)
    rooms = rng.integers(1, 8, n)
    area = rooms * 18 + rng.normal(0, 10, n)
    age = rng.uniform(0, 80, n)
    dist = rng.exponential(6, n)
    floor = rng.integers(0, 12, n)
    noise_cols = rng.standard_normal((n, 5))
    price = 0.03 * area + 0.2 * rooms - 0.01 * age - 0.08 * dist + 0.02 * floor + 0.1 * rng.standard_normal(n)
    x = np.column_stack([rooms, area, age, dist, floor, noise_cols]).astype("float32")
    x = (x - x.mean(0)) / x.std(0)
    y = ((price - price.mean()) / price.std()).astype("float32")
    return x, y


class Block(nn.Module):
    def __init__(self, dim, p=0.05):
        super().__init__()
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.fc2(self.drop(torch.relu(self.fc1(x))))


class PriceNet(nn.Module):
    def __init__(self, n_in, dim=48, depth=2):
        super().__init__()
        self.stem = nn.Linear(n_in, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for b in self.blocks:
            x = b(x)
        return self.head(x).squeeze(-1)


def evaluate(model, loader, dtype):
    model.eval()
    se, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            pred = model(x.to(dtype)).float()
            se += ((pred - y) ** 2).sum().item()
            n += y.numel()
    model.train()
    return se / n


def main():
    torch.manual_seed(SEED)
    x, y = synth_housing()
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    train = DataLoader(TensorDataset(x[:1920], y[:1920]), batch_size=BATCH, shuffle=True)
    val = DataLoader(TensorDataset(x[1920:], y[1920:]), batch_size=300)

    dtype = torch.float16
    model = PriceNet(x.shape[1]).to(dtype)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.0)

    for epoch in range(EPOCHS):
        total, n = 0.0, 0
        for xb, yb in train:
            pred = model(xb.to(dtype))
            loss = nn.functional.mse_loss(pred.float(), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * len(yb)
            n += len(yb)
        print(f"epoch {epoch:2d} train mse {total / n:.4f} val mse {evaluate(model, val, dtype):.4f}")

    print(f"final val mse {evaluate(model, val, dtype):.4f}")


if __name__ == "__main__":
    main()
