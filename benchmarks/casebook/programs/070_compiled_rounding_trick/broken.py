import torch
import torch._inductor.config
from torch import nn


def fake_quant(w):
    """Round to multiples of 1/8: half has no finer steps between 128 and 256."""
    w = w.half()
    return (w + 192.0) - 192.0


class QuantLinear(nn.Linear):
    def forward(self, x):
        w = self.weight + (quant(self.weight).float() - self.weight).detach()  # straight through
        with torch.autocast("cpu", dtype=torch.float16):
            return nn.functional.linear(x, w, self.bias).float()


quant = torch.compile(fake_quant)
torch.manual_seed(0)
net = nn.Sequential(QuantLinear(8, 64), nn.ReLU(), QuantLinear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(200):
    x = torch.randn(128, 8)
    loss = nn.functional.mse_loss(net(x), x[:, :1] * x[:, 1:2])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 20 == 19:
        print(f"step {step + 1} loss {loss.item():.4f}")

with torch.no_grad():
    off = sum(int((quant(m.weight).float() * 8).frac().ne(0).sum()) for m in (net[0], net[2]))
print("weights that are not on the grid:", off)
