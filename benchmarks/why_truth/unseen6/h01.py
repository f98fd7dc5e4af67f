# digits MLP, fp16 autocast, large initial loss scale
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

p = argparse.ArgumentParser()
p.add_argument("--init-scale", type=float, default=2.0 ** 24)
p.add_argument("--epochs", type=int, default=14)
p.add_argument("--lr", type=float, default=2e-3)
p.add_argument("--bs", type=int, default=64)
args = p.parse_args()

torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
X = torch.from_numpy((X / 16).astype(np.float32))
y = torch.from_numpy(y)
perm = torch.randperm(len(X))
X, y = X[perm], y[perm]
Xtr, ytr, Xva, yva = X[:1400], y[:1400], X[1400:], y[1400:]

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.BatchNorm1d(128),
                    nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
opt = torch.optim.Adam(net.parameters(), lr=args.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale, growth_interval=500)

step = skipped = 0
for ep in range(args.epochs):
    net.train()
    order = torch.randperm(len(Xtr))
    for i in range(0, len(order) - args.bs + 1, args.bs):
        b = order[i:i + args.bs]
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(Xtr[b])
            loss = F.cross_entropy(out.float(), ytr[b])
        opt.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
            print(f"step {step}: inf grads, scale {before:g} -> {scaler.get_scale():g}")
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1

net.eval()
with torch.no_grad():
    val = F.cross_entropy(net(Xva), yva).item()
print(f"skipped {skipped} of {step}")
print(f"val_loss {val:.4f}")
