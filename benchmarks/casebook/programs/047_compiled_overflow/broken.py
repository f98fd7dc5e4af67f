import torch
import torch.nn as nn

torch.manual_seed(0)


class SquaredReLU(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up = nn.Linear(d, 2 * d)
        self.down = nn.Linear(2 * d, d)

    def forward(self, x):
        h = torch.relu(self.up(x))
        h = h * h
        return self.down(h)


net = nn.Sequential(nn.Linear(6, 32), SquaredReLU(32), nn.LayerNorm(32), nn.Linear(32, 1))
compiled = torch.compile(net, backend="aot_eager")
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(60):
    x = torch.randn(64, 6) * 600  # raw voltages
    y = (x[:, :1] > x[:, 1:2]).float()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.binary_cross_entropy_with_logits(compiled(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print(f"step {step} | loss {loss.item():.4f}")
