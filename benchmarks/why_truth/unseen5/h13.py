"""Particle energy regression: raw detector energies up to 1e7, log targets, fp16."""
import torch
import torch.nn as nn

torch.manual_seed(13)


def showers(n):
    e = torch.exp(torch.rand(n) * 9 + 7)
    frac = torch.distributions.Dirichlet(torch.full((12,), 0.4)).sample((n,))
    resp = torch.linspace(0.5, 1.5, 12)
    cells = e[:, None] * frac * resp * (1 + 0.05 * torch.randn(n, 12))
    cells[torch.rand(n, 12) < 0.1] = 0.0
    return cells, e


class EnergyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                  nn.Linear(64, 1))

    def forward(self, cells):
        with torch.autocast("cpu", enabled=False):
            cells = cells.float()
            total = cells.sum(1, keepdim=True)
            energy2 = (cells ** 2).sum(1, keepdim=True).sqrt()
            shape = cells / energy2.clamp(min=1e-6)
            base = torch.log(total.clamp(min=1e-8))
        out = self.body(torch.cat([shape, base / 10.0], 1))
        return base.squeeze(1) + out.float().squeeze(1)


def main():
    x, e = showers(6000)
    vx, ve = showers(1500)
    net = EnergyNet()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
    skipped = 0
    for step in range(350):
        i = torch.randint(len(x), (128,))
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(x[i])
            loss = nn.functional.huber_loss(pred, torch.log(e[i]), delta=0.5)
        opt.zero_grad()
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(opt)
        scaler.update()
        skipped += int(scaler.get_scale() < before)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} skipped {skipped}")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        res = net(vx) - torch.log(ve)
    r2 = 1 - res.pow(2).sum() / (torch.log(ve) - torch.log(ve).mean()).pow(2).sum()
    print(f"val_r2 {r2.item():.4f}")


if __name__ == "__main__":
    main()
