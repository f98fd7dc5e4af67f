import torch
from torch import nn
import torch.nn.functional as F


def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        x = torch.randn(64, 1, 12, 12, generator=g)
        y = torch.randint(0, 4, (64,), generator=g)
        x[torch.arange(64), 0, y * 3] += 2.0
        yield x, y


model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")

for step, (x, y) in enumerate(batches(60, seed=0)):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    # keep training stable
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.item():.4f}")
