"""Energy-demand regression with raw (large) targets; bf16 body, fp32 head and loss."""
import torch
import torch.nn as nn

torch.manual_seed(2)


def load(n):
    x = torch.rand(n, 8)
    y = 52_000 + 9_000 * torch.sin(6 * x[:, 0]) + 7_000 * x[:, 1] * x[:, 2] - 4_000 * x[:, 3]
    return x, y + 300 * torch.randn(n)


x_tr, y_tr = load(3000)
x_va, y_va = load(600)
shift, scale = y_tr.mean(), y_tr.std()


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.body(x)
        out = self.head(h.float()).squeeze(-1)
        return out * scale + shift


net = Demand()
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 30)
for epoch in range(30):
    last = 0.0
    for idx in torch.randperm(len(x_tr)).split(100):
        pred = net(x_tr[idx])
        loss = (pred - y_tr[idx]).square().sum()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        opt.step()
        last = loss.item()
    sched.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1} sum-of-squares {last:.4g} grad norm {norm.item():.3g}")

with torch.no_grad():
    mape = ((net(x_va) - y_va).abs() / y_va).mean().item() * 100
print(f"val_mape {mape:.4f}")
