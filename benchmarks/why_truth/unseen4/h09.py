"""GAN on a 1-D log-normal; generator and discriminator share one scaler."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def real_batch(n):
    return torch.exp(0.4 * torch.randn(n, 1) + 0.5)


def net(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, o))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=300)
    p.add_argument("--fp32", dest="amp", action="store_false")
    args = p.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    G, D = net(4, 1).to(device), net(1, 1).to(device)
    og = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
    od = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.99))
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, enabled=args.amp)
    cast = lambda: torch.autocast(device, dtype=torch.float16, enabled=args.amp)
    bce = F.binary_cross_entropy_with_logits
    for it in range(args.iters):
        x = real_batch(128).to(device)
        with cast():
            fake = G(torch.randn(128, 4, device=device))
            dr, df = D(x).float(), D(fake.detach()).float()
            loss_d = bce(dr, torch.full_like(dr, 0.9)) + bce(df, torch.zeros_like(df))
        od.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.step(od)
        with cast():
            out = D(fake).float()
            loss_g = bce(out, torch.ones_like(out))
        og.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.step(og)
        scaler.update()
        if (it + 1) % 60 == 0:
            with torch.no_grad():
                s = G(torch.randn(2000, 4, device=device)).float().cpu().squeeze(1)
            r = real_batch(2000).squeeze(1)
            err = (s.sort().values - r.sort().values).abs().mean().item()
            print(f"it {it + 1} d {loss_d.item():.3f} g {loss_g.item():.3f} w1 {err:.3f}")


if __name__ == "__main__":
    main()
