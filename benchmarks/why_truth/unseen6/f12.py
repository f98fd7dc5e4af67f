"""Single-object detector: predicts one box in 640x640 pixel space, GIoU + L1."""
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED, IMG, CELL = 8, 640.0, 16
torch.manual_seed(SEED)


def render(n):
    """Occupancy grid 16x16 of the object plus noise; boxes are xyxy in pixels."""
    wh = torch.rand(n, 2) * 400 + 120
    c = torch.rand(n, 2) * (IMG - wh) + wh / 2
    box = torch.cat([c - wh / 2, c + wh / 2], 1)
    g = (torch.arange(CELL) + 0.5) * (IMG / CELL)
    inx = (g[None] > box[:, 0:1]) & (g[None] < box[:, 2:3])
    iny = (g[None] > box[:, 1:2]) & (g[None] < box[:, 3:4])
    m = (iny[:, :, None] & inx[:, None, :]).float()
    return (m + 0.2 * torch.randn_like(m)).unsqueeze(1), box


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        )
        self.neck = nn.Linear(32 * 16, 128)
        self.head = nn.Linear(128, 4)

    def forward(self, img):
        h = F.relu(self.neck(self.backbone(img)))
        cx, cy, w, h = self.head(h).sigmoid().unbind(-1)
        return torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1) * IMG


def box_area(b):
    return (b[:, 2] - b[:, 0]).clamp(min=0) * (b[:, 3] - b[:, 1]).clamp(min=0)


def giou(a, b):
    lt = torch.max(a[:, :2], b[:, :2])
    rb = torch.min(a[:, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    union = box_area(a) + box_area(b) - inter
    iou = inter / union
    clt = torch.min(a[:, :2], b[:, :2])
    crb = torch.max(a[:, 2:], b[:, 2:])
    cwh = (crb - clt).clamp(min=0)
    hull = cwh[:, 0] * cwh[:, 1]
    return iou - (hull - union) / hull


def criterion(pred, target):
    target = target.to(pred.dtype)
    l_iou = (1 - giou(pred, target)).mean()
    l_l1 = F.smooth_l1_loss(pred / IMG, target / IMG)
    return 2.0 * l_iou.float() + 5.0 * l_l1.float()


model = Detector()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
STEPS = 250
for step in range(STEPS):
    img, box = render(64)
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = criterion(model(img), box)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 25 == 0:
        print(f"step {step:4d}  loss {loss.item():.4f}")

model.eval()
img, box = render(1000)
with torch.no_grad():
    pred = model(img)
print(f"val_loss {(1 - giou(pred, box)).mean().item():.4f}")
