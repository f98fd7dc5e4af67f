import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        h = self.conv1(x)
        h = F.relu(self.bn1(h))
        return self.fc(h.mean((2, 3)))


def sample(n):
    y = torch.randint(0, 2, (n,))
    x = torch.rand(n, 3, 8, 8)
    x[:, 0] += y.view(-1, 1, 1)
    return x, y


net = Net()
opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    x, y = sample(32)
    if step == 37:
        x[4] *= 3e5  # one image was stored as uint16 counts
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 8 == 0:
        print("step", step, "train loss", round(loss.item(), 4))

net.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    x, y = sample(256)
    out = net(x)
    print("val loss", F.cross_entropy(out, y).item(), "acc", (out.argmax(1) == y).float().mean().item())
