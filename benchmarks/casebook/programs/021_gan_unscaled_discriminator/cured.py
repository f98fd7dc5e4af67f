import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
D = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
opt_g = torch.optim.SGD(G.parameters(), lr=0.02)
opt_d = torch.optim.SGD(D.parameters(), lr=0.02)
bce = nn.BCEWithLogitsLoss()
scaler = torch.amp.GradScaler("cpu")
start = D[0].weight.detach().clone()

for it in range(120):
    real = torch.randn(64, 2) * 0.3 + torch.tensor([2.0, -1.0])
    z = torch.randn(64, 8)

    # G
    opt_g.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        fake = G(z)
        g_loss = bce(D(fake), torch.ones(64, 1))
    scaler.scale(g_loss).backward()
    scaler.step(opt_g)

    # D
    opt_d.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        d_loss = bce(D(real), torch.ones(64, 1)) + bce(D(fake.detach()), torch.zeros(64, 1))
    scaler.scale(d_loss).backward()
    scaler.step(opt_d)
    scaler.update()
    if it % 20 == 0:
        print(f"it {it} loss_D {d_loss.item():.4f} loss_G {g_loss.item():.4f}")

print("d moved", (D[0].weight - start).norm().item())
