import torch
from torch import nn

torch.manual_seed(0)
dtype = torch.float16
T = 1000
betas = torch.linspace(1e-4, 0.04, T)
alpha_bar = torch.cumprod(1 - betas, 0)
snr = alpha_bar / (1 - alpha_bar)
weight = torch.minimum(snr, torch.tensor(5.0).to(snr)) / snr

net = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 2))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(100):
    x0 = torch.randn(64, 2) * 0.2 + torch.tensor([1.0, -1.0])
    t = torch.randint(0, T, (64,))
    ab = alpha_bar[t].float()[:, None]
    noise = torch.randn_like(x0)
    xt = ab.sqrt() * x0 + (1 - ab).sqrt() * noise
    with torch.autocast("cpu", dtype=dtype):
        eps = net(torch.cat([xt, t[:, None] / T], 1))
    loss = (weight[t].float()[:, None] * (eps.float() - noise) ** 2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print("step", step, "loss", round(loss.item(), 4))
