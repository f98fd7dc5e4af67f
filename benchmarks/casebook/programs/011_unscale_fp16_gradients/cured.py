import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(7)


class UNetish(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.up = nn.ConvTranspose2d(c, 1, 4, stride=2, padding=1)

    def forward(self, x, t):
        h = F.silu(self.down(x))
        h = F.silu(self.mid(h) + t[:, None, None, None])
        return self.up(h)


model = UNetish()
weight_dtype = torch.float16
model = model.to(dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, eps=1e-5)
scaler = torch.amp.GradScaler("cpu")
images = torch.sin(torch.linspace(0, 12, 256)).view(1, 1, 16, 16).repeat(16, 1, 1, 1)

for step in range(40):
    t = torch.rand(16)
    noise = torch.randn_like(images)
    noisy = (images * (1 - t.view(-1, 1, 1, 1)) + noise * t.view(-1, 1, 1, 1)).to(weight_dtype)
    with torch.autocast("cpu", dtype=weight_dtype):
        pred = model(noisy, t.to(weight_dtype))
        loss = F.mse_loss(pred.float(), images)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(f"step={step} loss={loss.item():.4f}")
