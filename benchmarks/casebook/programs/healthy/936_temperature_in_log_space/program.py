import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
tower_a, tower_b = nn.Linear(20, 16), nn.Linear(20, 16)
opt = torch.optim.AdamW([*tower_a.parameters(), *tower_b.parameters()], lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(40):
    a = torch.randn(64, 20)
    b = a + 0.2 * torch.randn(64, 20)
    with torch.autocast("cpu", dtype=torch.float16):
        za, zb = F.normalize(tower_a(a).float(), dim=-1), F.normalize(tower_b(b).float(), dim=-1)
        logits = za @ zb.t() / 0.02
        loss = F.cross_entropy(logits, torch.arange(64))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 4 == 0:
        print("step", step, "loss", round(loss.item(), 4))
