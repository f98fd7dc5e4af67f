import torch
import torch.nn as nn


class MoE(nn.Module):
    def __init__(self, d=16, experts=8, k=2):
        super().__init__()
        self.k = k
        self.router = nn.Linear(d, experts)
        self.up = nn.Parameter(torch.randn(experts, d, d) * 0.2)

    def forward(self, x):
        probs = torch.softmax(self.router(x), -1)
        probs = probs * (torch.rand_like(probs) > 0.3)  # expert dropout
        top, idx = probs.topk(self.k, -1)
        gates = top / top.sum(-1, keepdim=True).clamp(min=1e-3)
        y = torch.einsum("nd,nkde->nke", x, self.up[idx].to(x.dtype))
        return x + (gates[..., None] * y).sum(1)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), MoE(), nn.Linear(16, 1))
net[1].router.weight.data.mul_(30)
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
for step in range(80):
    x = torch.randn(64, 6)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), x[:, :1] * 2)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f}")
