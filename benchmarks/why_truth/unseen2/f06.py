"""Digit-like pattern classification with a small convnet, FP16 autocast and gradient clipping."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)

CLASSES = 6
STEPS = 120
BATCH = 16
MAX_NORM = 1.0

prototypes = torch.randn(CLASSES, 1, 8, 8)


def batch(n):
    y = torch.randint(0, CLASSES, (n,))
    x = prototypes[y] + 0.5 * torch.randn(n, 1, 8, 8)
    return x, y


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.fc = nn.Linear(16 * 2 * 2, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


def accuracy(model):
    model.eval()
    x, y = batch(256)
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


model = ConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)

for step in range(STEPS):
    x, y = batch(BATCH)
    optimizer.zero_grad(set_to_none=True)

    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = F.cross_entropy(logits, y)

    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()

    if step % 10 == 0:
        print(f"step {step:3d} | loss {loss.item():.4f} | lr {scheduler.get_last_lr()[0]:.4f}")

print(f"final loss {loss.item():.4f}, accuracy {accuracy(model):.3f}")
