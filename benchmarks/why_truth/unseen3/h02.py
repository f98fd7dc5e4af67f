"""Image classifier in BF16 autocast without any loss scaling; 8-bit pixels with only a shift."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def stripes(n, seed, s=12):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:s, :s]
    y = rng.integers(0, 4, n)
    img = np.zeros((n, 1, s, s), np.float32)
    for i in range(n):
        ang = y[i] * np.pi / 4
        img[i, 0] = 128 + 90 * np.sin((xx * np.cos(ang) + yy * np.sin(ang)) * 1.3 + rng.uniform(0, 6)) + 40 * rng.standard_normal((s, s))
    return torch.from_numpy(img.clip(0, 255)), torch.from_numpy(y)


class Net(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.c1 = nn.Conv2d(1, c, 5, padding=2)
        self.b1 = nn.BatchNorm2d(c)
        self.c2 = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.b2 = nn.BatchNorm2d(2 * c)
        self.fc = nn.Linear(2 * c, 4)

    def forward(self, x):
        x = F.relu(self.b1(self.c1(x - 100)))
        x = F.relu(self.b2(self.c2(x)))
        return self.fc(x.amax(dim=(2, 3)))


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        a = (model(x).argmax(-1) == y).float().mean().item()
    model.train()
    return a


def main():
    torch.manual_seed(0)
    x, y = stripes(600, 0)
    xt, yt = stripes(200, 1)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=150)
    for step in range(150):
        i = torch.randint(0, len(x), (16,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} grad {norm.item():.2f}")
    print(f"final test accuracy {accuracy(model, xt, yt):.4f}")


if __name__ == "__main__":
    main()
