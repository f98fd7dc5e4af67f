"""Segment classifier: the average of a segment is read from prefix sums of the frame features."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)
FRAMES = 256
FEATURES = 8
HIDDEN = 16
CLASSES = 4
STEPS = 150

directions = F.normalize(torch.randn(CLASSES, FEATURES), dim=-1)


def clips(n):
    """Band energies of long clips; one short segment per clip carries the class."""
    y = torch.randint(0, CLASSES, (n,))
    x = 2.0 + 0.1 * torch.randn(n, FRAMES, FEATURES)
    start = torch.randint(FRAMES // 2, FRAMES - 8, (n,))
    for i in range(n):
        x[i, start[i]:start[i] + 6] += 0.5 * directions[y[i]]
    return x, start, start + 6, y


def segment_mean(frames, start, end):
    total = torch.cumsum(frames, dim=1)
    rows = torch.arange(len(frames))
    summed = total[rows, end - 1] - total[rows, start - 1]
    return summed / (end - start).unsqueeze(-1)


class SegmentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.frame = nn.Linear(FEATURES, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.head = nn.Sequential(nn.Linear(HIDDEN, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        # a fixed bank of positive filters
        self.frame.weight.requires_grad_(False).abs_()
        self.frame.bias.requires_grad_(False).zero_()

    def forward(self, x, start, end):
        frames = self.frame(x)
        pooled = segment_mean(frames, start, end)
        return self.head(self.norm(pooled))


model = SegmentNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
recent = []

for step in range(STEPS):
    x, start, end, y = clips(32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x, start, end)
        loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    recent.append(loss.item())
    if step % 15 == 14:
        print(f"step {step + 1:3d} loss {sum(recent[-15:]) / 15:.4f}")
