import os
import torch
from torch import nn


def data(epoch):
    g = torch.Generator().manual_seed(epoch)
    x = torch.randn(256, 6, generator=g)
    if epoch == 3:
        x[10, 2] = float("nan")  # a bad shard
    return x, x[:, :1] * 2 - x[:, 1:2]


def fit(first, last, path="last.pt"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)).half()
    if os.path.exists(path):
        ckpt = torch.load(path)
        model.load_state_dict(ckpt["model"])
        print("resumed from epoch", ckpt["epoch"])
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(first, last):
        x, y = data(epoch)
        for xb, yb in zip(x.split(32), y.split(32)):
            loss = nn.functional.mse_loss(model(xb.half()).float(), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if not torch.isfinite(loss):
            print(f"epoch {epoch} is not finite and was not saved")
            return
        print(f"epoch {epoch} loss {loss.item():.4f}")
        torch.save({"model": model.state_dict(), "epoch": epoch}, path)


fit(0, 4)
# the job was preempted here and starts again
fit(4, 8)
