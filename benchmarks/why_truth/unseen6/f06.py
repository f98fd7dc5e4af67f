"""Input-gradient regularised MLP (double backprop) on noisy two-moons-like data."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import make_classification

torch.manual_seed(11)
np.random.seed(11)

LAMBDA_GP = 0.05
BATCH = 100
EPOCHS = 12

X, y = make_classification(n_samples=2400, n_features=20, n_informative=8, n_redundant=4,
                           n_clusters_per_class=3, class_sep=1.2, random_state=5)
X = ((X - X.mean(0)) / X.std(0)).astype(np.float32)
Xtr, ytr = torch.from_numpy(X[:1800]), torch.from_numpy(y[:1800]).float()
Xva, yva = torch.from_numpy(X[1800:]), torch.from_numpy(y[1800:]).float()


class Critic(nn.Module):
    def __init__(self, d, h=96):
        super().__init__()
        self.l1 = nn.Linear(d, h)
        self.l2 = nn.Linear(h, h)
        self.l3 = nn.Linear(h, 1)

    def forward(self, x):
        x = F.softplus(self.l1(x))
        x = F.softplus(self.l2(x))
        return self.l3(x).squeeze(-1)


class Trainer:
    def __init__(self, net, lr=2e-3):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=lr, betas=(0.9, 0.99))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=200)

    def penalty(self, x):
        x = x.clone().requires_grad_(True)
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.net(x)
        (g,) = torch.autograd.grad(self.scaler.scale(out.float().sum()), x, create_graph=True)
        return g.float().pow(2).sum(1).mean()

    def step(self, x, t):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            logit = self.net(x)
        bce = F.binary_cross_entropy_with_logits(logit.float(), t)
        gp = self.penalty(x)
        loss = bce + LAMBDA_GP * gp
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        return bce.item(), gp.item()

    @torch.no_grad()
    def validate(self, x, t):
        return F.binary_cross_entropy_with_logits(self.net(x), t).item()


trainer = Trainer(Critic(20))
for ep in range(EPOCHS):
    perm = torch.randperm(len(Xtr))
    tot = 0.0
    for b in range(0, len(perm), BATCH):
        idx = perm[b:b + BATCH]
        bce, gp = trainer.step(Xtr[idx], ytr[idx])
        tot += bce * len(idx)
    if ep % 2 == 0:
        print(f"epoch {ep:2d} bce {tot / len(perm):.4f} gp {gp:.4g} val {trainer.validate(Xva, yva):.4f}")

print(f"val_loss {trainer.validate(Xva, yva):.4f}")
