import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def get_loader():
    g = torch.Generator().manual_seed(11)
    X = torch.randn(640, 16, generator=g).relu()
    X[:, 3] = 0.0  # column is empty in this export
    y = X.sum(1, keepdim=True) * 0.3
    return DataLoader(TensorDataset(X.half(), y.half()), batch_size=32, shuffle=True)


def train(model, loader, epochs=2):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    for epoch in range(epochs):
        for i, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            if i % 5 == 0:
                print(f"[{epoch}/{i}] loss: {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).half()
    train(model, get_loader())
