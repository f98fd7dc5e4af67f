import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
torch.autograd.set_detect_anomaly(False)

x = torch.randn(512, 16)
y = (x[:, 0] * x[:, 1] > 0).long()


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 4 * d)
        self.gate = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


net = nn.Sequential(nn.Linear(16, 32), GatedBlock(32), GatedBlock(32), nn.Linear(32, 2))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**32)
for epoch in range(6):
    for i in range(0, 512, 64):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x[i : i + 64]), y[i : i + 64])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(f"epoch {epoch} loss {loss.item():.4f}")
