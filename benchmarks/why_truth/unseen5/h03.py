"""Road segmentation with BCE + soft dice; logs of clamped probabilities in an fp32 island."""
import torch
import torch.nn as nn

torch.manual_seed(4)
SIZE = 24


def tiles(n):
    xx = torch.arange(SIZE).float()
    a, b = torch.randn(n, 1, 1), torch.rand(n, 1, 1) * SIZE
    line = (a * 0.7 * (xx[None, None] - SIZE / 2) + b - xx[None, :, None]).abs() < 2.5
    mask = line.float()
    mask[::15] = 0.0
    return (mask + 0.5 * torch.randn(n, SIZE, SIZE)).unsqueeze(1), mask.unsqueeze(1)


class Net(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=2, dilation=2), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, 1, 3, padding=1))

    def forward(self, x):
        return self.body(x)


def criterion(logits, y, eps=1e-7):
    with torch.autocast("cpu", enabled=False):
        p = torch.sigmoid(logits.float()).clamp(eps, 1 - eps)
        bce = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
        inter = (p * y).sum((1, 2, 3))
        dice = 1 - (2 * inter + eps) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + eps)
    return bce + 0.5 * dice.mean()


x, y = tiles(160)
xv, yv = tiles(40)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(5):
    tot = 0.0
    for idx in torch.randperm(len(x)).split(16):
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(x[idx])
        loss = criterion(out, y[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        tot += loss.item()
    print(f"epoch {epoch} loss {tot / 10:.4f}")

net.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    pred = (net(xv) > 0).float()
iou = ((pred * yv).sum() / ((pred + yv) > 0).float().sum()).item()
print(f"val_iou {iou:.4f}")
