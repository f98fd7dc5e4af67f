"""VAE on noisy sine windows; gradient accumulation, fp16."""
import math
import torch
import torch.nn as nn

torch.manual_seed(11)
L, Z, ACCUM = 48, 6, 4


def windows(n):
    t = torch.linspace(0, 1, L)
    f = torch.randint(1, 4, (n, 1)).float()
    ph = 2 * math.pi * torch.rand(n, 1)
    amp = 0.5 + torch.rand(n, 1)
    return amp * torch.sin(2 * math.pi * f * t + ph) + 0.05 * torch.randn(n, L)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(L, 96), nn.GELU(), nn.Linear(96, 2 * Z))
        self.dec = nn.Sequential(nn.Linear(Z, 96), nn.GELU(), nn.Linear(96, L))

    def forward(self, x):
        mu, logvar = self.enc(x).float().chunk(2, -1)
        logvar = logvar.clamp(-12.0, 12.0)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        kl = 0.5 * (mu ** 2 + logvar.exp() - 1.0 - logvar).sum(-1)
        return self.dec(z), kl, mu


def main():
    x, vx = windows(2048), windows(512)
    net = VAE()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    micro = 0
    for epoch in range(9):
        tot = 0.0
        for idx in torch.randperm(len(x)).split(32):
            with torch.autocast("cpu", dtype=torch.float16):
                rec, kl, _ = net(x[idx])
                err = (rec.float() - x[idx]).pow(2).sum(-1)
                loss = (err + 0.02 * kl).mean() / ACCUM
            scaler.scale(loss).backward()
            micro += 1
            tot += loss.item() * ACCUM
            if micro % ACCUM == 0:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 5.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad(set_to_none=True)
        if epoch % 3 == 0:
            print(f"epoch {epoch} loss {tot / 64:.4f}")
    with torch.no_grad():
        _, _, mu = net(vx)
        rec = net.dec(mu)
    r2 = 1 - (rec - vx).pow(2).sum() / (vx - vx.mean()).pow(2).sum()
    print(f"val_r2 {r2.item():.4f}")


if __name__ == "__main__":
    main()
