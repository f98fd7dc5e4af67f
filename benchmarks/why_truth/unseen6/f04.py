# tiny sparse mixture-of-experts regression, bf16
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)


class Expert(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w1 = nn.Linear(d, hidden)
        self.w2 = nn.Linear(hidden, d)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class MoE(nn.Module):
    def __init__(self, d=32, n_experts=4, hidden=64):
        super().__init__()
        self.gate = nn.Linear(d, n_experts)
        self.experts = nn.ModuleList(Expert(d, hidden) for _ in range(n_experts))

    def forward(self, x):
        probs = self.gate(x).float().softmax(-1)
        weight, choice = probs.max(-1)
        out = torch.zeros_like(x)
        for i, ex in enumerate(self.experts):
            sel = choice == i
            if sel.any():
                out[sel] = ex(x[sel])
        load = F.one_hot(choice, len(self.experts)).float().mean(0)
        aux = (load * probs.mean(0)).sum() * len(self.experts)
        return x + weight.unsqueeze(-1) * out, aux


class Net(nn.Module):
    def __init__(self, d_in=10, d=32, layers=2):
        super().__init__()
        self.inp = nn.Linear(d_in, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.moes = nn.ModuleList(MoE(d) for _ in range(layers))
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        h = self.inp(x)
        aux = 0.0
        for n, m in zip(self.norms, self.moes):
            h, a = m(n(h.float()))
            aux = aux + a
        return self.head(h).squeeze(-1), aux


def make(n, g):
    x = torch.rand(n, 10, generator=g) * 2 - 1
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    y0 = torch.sin(3 * x[:, 2]) + x[:, 3]
    y1 = x[:, 4] * x[:, 5] * 2
    y2 = -x[:, 2] + x[:, 6] ** 2
    y3 = torch.cos(4 * x[:, 7])
    y = torch.stack([y0, y1, y2, y3], 1).gather(1, region[:, None]).squeeze(1)
    return x, y


g = torch.Generator().manual_seed(0)
xtr, ytr = make(4000, g)
xva, yva = make(1000, g)
model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
steps = 600
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=steps)
for step in range(steps):
    idx = torch.randint(0, len(xtr), (128,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pred, aux = model(xtr[idx])
    loss = F.mse_loss(pred.float(), ytr[idx]) + 0.01 * aux
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 100 == 0:
        print("step", step, "loss", round(loss.item(), 4))

model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    pred, _ = model(xva)
print("val_mse %.4f" % F.mse_loss(pred.float(), yva).item())
