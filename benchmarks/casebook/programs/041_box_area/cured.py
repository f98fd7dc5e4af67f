import torch
from torch import nn


def area(b):
    return (b[:, 2] - b[:, 0]).clamp(min=0) * (b[:, 3] - b[:, 1]).clamp(min=0)


def giou_loss(p, t):
    lt = torch.max(p[:, :2], t[:, :2])
    rb = torch.min(p[:, 2:], t[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    union = area(p) + area(t) - inter
    return (1 - inter / union).mean()


class Head(nn.Module):
    def __init__(self, size=640):
        super().__init__()
        self.size = size
        self.fc = nn.Linear(16, 4)

    def forward(self, f):
        cxcywh = self.fc(f).sigmoid() * self.size
        c, s = cxcywh.chunk(2, -1)
        return torch.cat([c - s / 2, c + s / 2], -1)


torch.manual_seed(0)
head = Head()
opt = torch.optim.AdamW(head.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
target = torch.tensor([[200.0, 220.0, 420.0, 460.0]]).half()
for step in range(60):
    feats = torch.randn(24, 16) * 0.2
    with torch.autocast("cpu", dtype=torch.float16):
        boxes = head(feats)
        loss = giou_loss(boxes.float(), target.float().expand(24, 4))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 6 == 0:
        print(f"step {step} iou loss {loss.item():.4f}")
