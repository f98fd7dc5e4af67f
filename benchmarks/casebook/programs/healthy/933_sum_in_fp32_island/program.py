import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
for step in range(30):
    image = torch.rand(4, 1, 48, 48) * 4
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(image + 0.1 * torch.randn_like(image))
    with torch.autocast("cpu", enabled=False):
        loss = (out.float() - image).square().sum()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1e3)
    scaler.step(opt)
    scaler.update()
    print(f"step {step} loss {loss.item():.2f}")
