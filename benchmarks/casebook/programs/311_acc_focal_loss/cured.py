import torch
import torch.nn as nn
from accelerate import Accelerator


def focal(logits, t, gamma=2.0):
    logits = logits.float()
    p = torch.sigmoid(logits)
    ce = nn.functional.binary_cross_entropy_with_logits(logits, t, reduction="none")
    pt = t * p + (1 - t) * (1 - p)
    return ((1 - pt) ** gamma * ce).mean()


accelerator = Accelerator(cpu=True, mixed_precision="fp16")
accelerator.native_amp = True
accelerator.scaler = torch.amp.GradScaler("cpu")
torch.manual_seed(0)

x = torch.randn(1500, 10)
y = (x[:, 0] > 1.2).float()
detector = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
with torch.no_grad():
    detector[2].weight *= 20
opt = torch.optim.AdamW(detector.parameters(), lr=1e-2)
detector, opt = accelerator.prepare(detector, opt)

for epoch in range(5):
    acc_loss = 0.0
    for i in range(0, 1500, 100):
        with accelerator.autocast():
            loss = focal(detector(x[i : i + 100]).squeeze(1).half(), y[i : i + 100])
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
        acc_loss += loss.item()
    print(f"[{epoch}] focal loss {acc_loss / 15:.4f}")
