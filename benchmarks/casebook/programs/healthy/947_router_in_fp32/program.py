import torch
from torch import nn


class MoE(nn.Module):
    def __init__(self, d=16, n=4):
        super().__init__()
        self.router = nn.Linear(d, n)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d)) for _ in range(n))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            probs = self.router(x.float()).softmax(-1)
            top, who = probs.topk(2, -1)
            gates = top / (top.sum(-1, keepdim=True) + 1e-9)
            balance = len(self.experts) * (probs.mean(0) ** 2).sum()
        ys = torch.stack([e(x) for e in self.experts], 1)
        y = ys.gather(1, who[..., None].expand(-1, -1, x.size(1)))
        return x + (gates[..., None] * y).sum(1), balance


torch.manual_seed(0)
inp, moe, out = nn.Linear(6, 16), MoE(), nn.Linear(16, 1)
params = [*inp.parameters(), *moe.parameters(), *out.parameters()]
opt = torch.optim.Adam(params, lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(150):
    x = torch.randn(128, 6)
    y = torch.where(x[:, :1] > 0, x[:, 1:2], -x[:, 2:3])
    with torch.autocast("cpu", dtype=torch.float16):
        h, balance = moe(inp(x))
        loss = nn.functional.mse_loss(out(h), y) + 0.01 * balance
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")
