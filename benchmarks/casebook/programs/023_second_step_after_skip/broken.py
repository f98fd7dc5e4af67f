import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr, amp=True):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.amp = amp
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=amp)

    def step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=self.amp):
            loss = nn.functional.l1_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.step()
        return loss.item()


def toy(n=128):
    t = torch.linspace(0, 1, 100).repeat(n, 1)
    f = torch.randint(1, 6, (n, 1)).float()
    return torch.sin(6.28 * f * t), torch.cos(6.28 * f * t)


torch.manual_seed(12)
voice = nn.Sequential(nn.Linear(100, 64), nn.Tanh(), nn.Linear(64, 100))
trainer = Trainer(voice, lr=2e-3)
for epoch in range(1, 8):
    value = 0
    for _ in range(8):
        value += trainer.step(*toy())
    print(f"epoch {epoch} | mel loss {value / 8:.4f}")
