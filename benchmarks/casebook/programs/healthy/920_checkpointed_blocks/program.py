import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Deep(nn.Module):
    def __init__(self, d=24, n=4):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.GELU()) for _ in range(n))
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        for b in self.blocks:
            x = x + checkpoint(b, x, use_reentrant=False)
        return self.out(x)


torch.manual_seed(0)
m = Deep()
opt = torch.optim.AdamW(m.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    x = torch.randn(64, 24)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(m(x), x[:, :1].sin())
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print(f"{step:03d} loss: {loss.item():.4f}")
