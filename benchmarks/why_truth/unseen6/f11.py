# RMSNorm MLP-mixer for sensor windows (raw ADC counts), fp16 autocast
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        ms = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(ms + self.eps) * self.weight


class Block(nn.Module):
    def __init__(self, dim, mult=2):
        super().__init__()
        self.norm = RMSNorm(dim)
        self.up = nn.Linear(dim, dim * mult)
        self.gate = nn.Linear(dim, dim * mult)
        self.down = nn.Linear(dim * mult, dim)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class SensorNet(nn.Module):
    def __init__(self, d_in=64, dim=96, depth=3, classes=6):
        super().__init__()
        self.stem = nn.Linear(d_in, dim)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def windows(n, gen):
    y = torch.randint(0, 6, (n,), generator=gen)
    t = torch.arange(64).float()
    freq = 0.1 + 0.06 * y.float()
    ph = torch.rand(n, generator=gen) * 6.28
    gain = torch.exp(1.5 * torch.randn(n, generator=gen) + 6.0)
    s = torch.sin(freq[:, None] * t + ph[:, None]) + 0.5 * torch.randn(n, 64, generator=gen)
    return (gain[:, None] * s).clamp(-2048, 2047).round(), y


gen = torch.Generator().manual_seed(1)
xtr, ytr = windows(3000, gen)
xva, yva = windows(800, gen)

model = SensorNet()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8)
B, STEPS = 64, 240
for it in range(STEPS):
    idx = torch.randint(0, len(xtr), (B,))
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(xtr[idx])
    loss = F.cross_entropy(logits.float(), ytr[idx])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if it % 40 == 0:
        print(f"it {it:4d} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    logits = model(xva).float()
print("val acc %.4f" % (logits.argmax(1) == yva).float().mean().item())
print("val_loss %.4f" % F.cross_entropy(logits, yva).item())
