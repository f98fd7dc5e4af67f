"""Supervised contrastive embedding on sklearn digits, fp16 autocast."""
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--bs", type=int, default=128)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--temperature", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
torch.manual_seed(args.seed)
np.random.seed(args.seed)

X, y = load_digits(return_X_y=True)
X = (X / 16.0).astype(np.float32)
perm = np.random.permutation(len(X))
tr, te = perm[:1400], perm[1400:]
Xtr, ytr = torch.from_numpy(X[tr]), torch.from_numpy(y[tr])
Xte, yte = torch.from_numpy(X[te]), torch.from_numpy(y[te])


class Encoder(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        )
        self.proj = nn.Linear(256, d)

    def forward(self, x):
        return F.normalize(self.proj(self.body(x)), dim=-1)


def supcon(z, labels, temperature):
    n = z.size(0)
    sim = z @ z.t() / temperature
    eye = torch.eye(n, dtype=torch.bool)
    pos = (labels[:, None] == labels[None, :]) & ~eye
    e = torch.exp(sim).masked_fill(eye, 0.0)
    denom = e.sum(dim=1, keepdim=True)
    logp = sim - torch.log(denom)
    npos = pos.sum(1).clamp(min=1)
    per_anchor = -(logp * pos).sum(1) / npos
    return per_anchor.float().mean()


net = Encoder()
opt = torch.optim.Adam(net.parameters(), lr=args.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10)

step = 0
for epoch in range(args.epochs):
    order = torch.randperm(len(Xtr))
    for i in range(0, len(order) - args.bs + 1, args.bs):
        idx = order[i : i + args.bs]
        xb = Xtr[idx] + 0.1 * torch.randn(args.bs, 64)
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            z = net(xb)
            loss = supcon(z, ytr[idx], args.temperature)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 10 == 0:
            print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        step += 1

net.eval()
with torch.no_grad():
    ztr, zte = net(Xtr).numpy(), net(Xte).numpy()
    val = F.cross_entropy(
        torch.from_numpy(zte @ np.stack([ztr[ytr.numpy() == c].mean(0) for c in range(10)]).T) * 10, yte
    )
knn = KNeighborsClassifier(5)
if np.isfinite(ztr).all():
    print("knn acc %.4f" % knn.fit(ztr, ytr.numpy()).score(zte, yte.numpy()))
print(f"val_loss {val.item():.4f}")
