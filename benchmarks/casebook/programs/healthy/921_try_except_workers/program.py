import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    x = torch.randn(480, 6)
    ds = TensorDataset(x, (x.sum(1) > 0).long())
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(4):
        for xb, yb in DataLoader(ds, batch_size=48, shuffle=True, num_workers=2):
            try:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = nn.functional.cross_entropy(net(xb), yb)
                opt.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            except Exception as e:
                print("skipping batch", e)
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
