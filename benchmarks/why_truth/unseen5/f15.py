"""Autoencoder on synthetic spectra with gradient accumulation and clipping."""
import torch
import torch.nn as nn

torch.manual_seed(37)
BINS, LATENT, ACCUM, MICRO = 64, 6, 4, 32


def spectra(n):
    grid = torch.linspace(0, 1, BINS)
    out = torch.zeros(n, BINS)
    for _ in range(2):
        centre, width = torch.rand(n, 1), 0.10 + 0.08 * torch.rand(n, 1)
        out += (0.5 + torch.rand(n, 1)) * torch.exp(-((grid - centre) / width) ** 2)
    return out + 0.02 * torch.randn(n, BINS)


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(BINS, 96), nn.Tanh(), nn.Linear(96, LATENT))
        self.dec = nn.Sequential(nn.Linear(LATENT, 96), nn.Tanh(), nn.Linear(96, BINS))

    def forward(self, x):
        return self.dec(self.enc(x))


train, held = spectra(4096), spectra(512)
model = AE()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=500)


def epoch_pass(epoch):
    total = 0.0
    parts = torch.randperm(len(train)).split(MICRO)
    opt.zero_grad(set_to_none=True)
    for i, idx in enumerate(parts):
        x = train[idx]
        with torch.autocast("cpu", dtype=torch.float16):
            rec = model(x)
        loss = (rec.float() - x).pow(2).sum(1).mean() / ACCUM
        scaler.scale(loss).backward()
        total += loss.item() * ACCUM / BINS
        if i % ACCUM == 0:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        if (i + 1) % ACCUM == 0:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
    print(f"epoch {epoch} mse {total / len(parts):.5f}")


for e in range(12):
    epoch_pass(e)

model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    err = (model(held).float() - held).pow(2).mean().item()
print(f"val_mse {err:.5f}")
