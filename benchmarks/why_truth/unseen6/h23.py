# 2-D GAN, two optimizers, two grad scalers, EMA generator.  Losses wander around; that is what GANs do.
import os, torch, copy
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
half = os.environ.get('FP32', '') != '1'
amp = lambda: torch.autocast('cpu', torch.float16, enabled=half)
Z, BS, ITERS = 8, 128, 420


def real(n):
    # elongated gaussian, rotated and shifted
    a = torch.randn(n, 2) * torch.tensor([1.0, 0.35])
    R = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    return a @ R.T + torch.tensor([0.7, -0.4])


def mlp(i, o, act):
    return nn.Sequential(nn.Linear(i, 64), act, nn.Linear(64, 64), act, nn.Linear(64, o))


G, D = mlp(Z, 2, nn.ReLU()), mlp(2, 1, nn.LeakyReLU(0.2))
Gema = copy.deepcopy(G).requires_grad_(False)
oG = torch.optim.Adam(G.parameters(), 1e-3, betas=(0.5, 0.99))
oD = torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.99))
sG = torch.amp.GradScaler('cpu', init_scale=4096., enabled=half)
sD = torch.amp.GradScaler('cpu', init_scale=4096., enabled=half)


def r1(x):
    # gradient penalty in plain fp32, outside autocast
    with torch.autocast('cpu', enabled=False):
        x = x.detach().float().requires_grad_(True)
        (gr,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
        return gr.square().sum(1).mean()


for it in range(ITERS):
    lr = 1e-3 * (1 - it / ITERS) + 1e-5
    for o in (oG, oD):
        o.param_groups[0]['lr'] = lr
    # ---- D
    xr = real(BS)
    with torch.no_grad(), amp():
        xf = G(torch.randn(BS, Z))
    with amp():
        dr, df = D(xr), D(xf.float())
    lossD = F.softplus(-dr.float()).mean() + F.softplus(df.float()).mean() + 0.1 * r1(xr)
    oD.zero_grad()
    sD.scale(lossD).backward()
    sD.step(oD)
    sD.update()

    # ---- G  (D's weights frozen so that they collect no grads here)
    D.requires_grad_(False)
    with amp():
        dg = D(G(torch.randn(BS, Z)))
    lossG = F.softplus(-dg.float()).mean()
    oG.zero_grad()
    sG.scale(lossG).backward()
    sG.step(oG)
    sG.update()
    D.requires_grad_(True)

    # ---- EMA in fp32, warm-up on the decay
    beta = min(0.99, (1 + it) / (10 + it))
    with torch.no_grad():
        for pe, p in zip(Gema.parameters(), G.parameters()):
            pe.lerp_(p, 1 - beta)
    if it % 100 == 0:
        print(f'{it:4d}  D {lossD.item():.3f}  G {lossG.item():.3f}  scales {sD.get_scale():.0f}/{sG.get_scale():.0f}')

with torch.no_grad():
    fake, ref = Gema(torch.randn(8000, Z)), real(8000)
th = torch.linspace(0, 3.1416, 33)[:-1]
proj = torch.stack([th.cos(), th.sin()])
swd = ((fake @ proj).sort(0).values - (ref @ proj).sort(0).values).abs().mean()
scale = ref.std()
# 1 = perfect overlap, 0 = off by one whole std
print(f'FINAL overlap score {1 - (swd / scale).item():.3f}')
