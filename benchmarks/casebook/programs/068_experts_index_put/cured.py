import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, d=16, n=4):
        super().__init__()
        self.gate = nn.Linear(d, n)
        self.ffn = nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d)) for _ in range(n))

    def forward(self, x):
        p, who = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for k, ffn in enumerate(self.ffn):
            rows = (who == k).nonzero(as_tuple=True)[0]
            out[rows] = (ffn(x[rows]) * p[rows, None]).to(out.dtype)
        return x + out


torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(50, 16), Experts(), nn.Linear(16, 50))
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    tok = torch.randint(0, 50, (128,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(tok), (tok * 7 + 3) % 50)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print(f"step {step} loss {loss.item():.4f}")
