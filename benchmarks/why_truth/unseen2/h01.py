"""Image-to-number regression in FP16; the loss scale starts high and finds its level."""
import torch
import torch.nn as nn

torch.manual_seed(1)
STEPS = 120
BATCH = 32


def data(n):
    x = torch.randn(n, 36)
    y = 4.0 + 3.0 * x[:, :6].sum(1, keepdim=True) + x[:, 6:7] * x[:, 7:8]
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(36, 48)
        self.b = nn.Linear(48, 48)
        self.c = nn.Linear(48, 1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = h + torch.relu(self.b(h))
        return self.c(h)


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=40)
skipped = 0

for step in range(STEPS):
    x, y = data(BATCH)
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(x)
        loss = nn.functional.mse_loss(out, y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 10 == 0:
        print(f"step {step:3d} loss {loss.item():.4f} scale {scaler.get_scale():g} skipped {skipped}")

print(f"final loss {loss.item():.4f}")
