import torch
import torch.nn as nn

torch.manual_seed(6)


def scene(n=8):
    depth = torch.rand(n, 16, 16)
    mask = torch.zeros(n, 16, 16)
    for k in range(n):
        if torch.rand(()) < 0.95:
            a, b = torch.randint(0, 12, (2,)).tolist()
            mask[k, a : a + 4, b : b + 4] = 1
    return depth, mask


def masked_mean(err, m):
    return (err * m).sum((1, 2)) / m.sum((1, 2)).clamp(min=1)


net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
optim = torch.optim.Adam(net.parameters(), 3e-3)
scaler = torch.amp.GradScaler("cpu")
log = []
for i in range(100):
    depth, mask = scene()
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(depth[:, None])[:, 0]
        loss = masked_mean((pred - 2 * depth).abs(), mask).mean()
    optim.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optim)
    scaler.update()
    log.append(loss.item())
    if i % 10 == 9:
        print(f"iter {i + 1:3d}  loss {sum(log[-10:]) / 10:.4f}")
