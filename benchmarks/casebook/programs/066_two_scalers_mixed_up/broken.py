import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
opt_g = torch.optim.SGD(G.parameters(), lr=0.02)
opt_d = torch.optim.SGD(D.parameters(), lr=0.05)
scaler_g = torch.amp.GradScaler("cpu")
scaler_d = torch.amp.GradScaler("cpu")
one, zero = torch.ones(64, 1), torch.zeros(64, 1)
seen = []

for it in range(600):
    real = torch.randn(64, 2) * 0.3 + torch.tensor([2.0, -1.0])
    with torch.autocast("cpu", dtype=torch.float16):
        fake = G(torch.randn(64, 4))
        loss_real = bce(D(real), one)
        loss_fake = bce(D(fake.detach()), zero)
    opt_d.zero_grad()
    scaler_d.scale(loss_real).backward()
    scaler_g.scale(loss_fake).backward()
    scaler_d.step(opt_d)
    scaler_d.update()

    with torch.autocast("cpu", dtype=torch.float16):
        moments = nn.functional.l1_loss(fake.mean(0), real.mean(0), reduction="sum")
        loss_g = bce(D(fake), one) + 40 * moments
    opt_g.zero_grad()
    scaler_g.scale(loss_g).backward()
    scaler_g.step(opt_g)
    scaler_g.update()
    seen.append(loss_fake.item())
    if it % 60 == 59:
        mean = sum(seen[-60:]) / 60
        print(f"it {it + 1} loss_fake {mean:.4f} scales {scaler_g.get_scale():g} {scaler_d.get_scale():g}")
