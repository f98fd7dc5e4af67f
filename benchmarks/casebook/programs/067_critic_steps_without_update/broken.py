import torch
from torch import nn

torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
opt_g = torch.optim.RMSprop(gen.parameters(), lr=1e-3)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


def batch():
    return torch.randn(64, 2) * 0.3 + torch.tensor([1.5, -0.5]), torch.randn(64, 4)


for it in range(100):
    for _ in range(5):  # n_critic, as in the paper
        real, z = batch()
        with torch.autocast("cpu", dtype=torch.float16):
            loss_c = critic(gen(z).detach()).mean() - critic(real).mean()
        opt_c.zero_grad()
        scaler.scale(loss_c).backward()
        scaler.step(opt_c)
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.1, 0.1)
    real, z = batch()
    with torch.autocast("cpu", dtype=torch.float16):
        fake = gen(z)
        loss_g = -critic(fake).mean()
    opt_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(opt_g)
    scaler.update()  # once per iteration
    if it % 10 == 9:
        print(f"it {it + 1} distance loss {(fake.float().mean(0) - real.mean(0)).norm().item():.4f}")
