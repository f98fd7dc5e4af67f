"""Patch regression on synthetic night-sky images with a per-patch standardisation layer."""
import torch
import torch.nn as nn

torch.manual_seed(11)

STEPS = 100
BATCH = 24
SIDE = 8
LR = 2e-3


def draw(n):
    """Dark frames with a few stars; the target is the total brightness of the stars."""
    img = torch.zeros(n, SIDE, SIDE)
    stars = torch.randint(0, 9, (n,))
    for i, k in enumerate(stars.tolist()):
        for _ in range(k):
            r, c = torch.randint(0, SIDE, (2,)).tolist()
            img[i, r, c] += 0.5 + torch.rand(()).item()
    return img.flatten(1), stars.float().unsqueeze(1) / 8


class Standardise(nn.Module):
    """Zero mean, unit variance over the features, then a learned gain."""

    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        var = (x * x).mean(-1, keepdim=True)
        return x / torch.sqrt(var + self.eps) * self.gain


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.inp = nn.Linear(SIDE * SIDE, width, bias=False)
        self.norm = Standardise(width)
        self.hidden = nn.Linear(width, width)
        self.bright = nn.Linear(1, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = self.norm(self.inp(x)) + self.bright(x.sum(-1, keepdim=True))
        h = torch.relu(self.hidden(torch.relu(h)))
        return self.out(h)


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=LR)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

running = None
for step in range(1, STEPS + 1):
    x, y = draw(BATCH)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        pred = net(x)
    loss = torch.nn.functional.smooth_l1_loss(pred.float(), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
    if step % 10 == 0:
        print(f"{step:4d} loss={loss.item():.5f} avg={running:.5f} scale={scaler.get_scale():g}")
