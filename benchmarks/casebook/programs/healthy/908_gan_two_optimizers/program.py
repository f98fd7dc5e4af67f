import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
og = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.9))
od = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.9))
bce = nn.BCEWithLogitsLoss()
scaler = torch.amp.GradScaler("cpu")
mean = torch.tensor([2.0, -1.0])
one, zero = torch.ones(64, 1), torch.zeros(64, 1)
for it in range(300):
    real = torch.randn(64, 2) * 0.5 + mean
    with torch.autocast("cpu", dtype=torch.float16):
        fake = G(torch.randn(64, 4))
        loss_d = bce(D(real), one) + bce(D(fake.detach()), zero)
    od.zero_grad()
    scaler.scale(loss_d).backward()
    scaler.step(od)
    with torch.autocast("cpu", dtype=torch.float16):
        loss_g = bce(D(fake), one)
    og.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(og)
    scaler.update()
    if it % 60 == 59:
        d = (fake.detach().float().mean(0) - mean).norm().item()
        print(f"it {it} loss_d {loss_d.item():.3f} loss_g {loss_g.item():.3f} distance {d:.3f}")
