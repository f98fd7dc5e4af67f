"""Encoder and heads with their own optimizers (multi-task), one GradScaler."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())

    def forward(self, x):
        return self.body(x)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls = nn.Linear(48, 6)
        self.reg = nn.Linear(48, 2)

    def forward(self, h):
        return self.cls(h), self.reg(h)


def stream(steps, bs=64):
    g = torch.Generator().manual_seed(21)
    centers = torch.randn(6, 30, generator=g)
    w = torch.randn(30, 2, generator=g) / 5
    for _ in range(steps):
        y = torch.randint(0, 6, (bs,), generator=g)
        x = centers[y] + 0.5 * torch.randn(bs, 30, generator=g)
        yield x, y, x @ w


class Trainer:
    def __init__(self):
        self.encoder, self.heads = Encoder(), Heads()
        self.opt_enc = torch.optim.SGD(self.encoder.parameters(), lr=0.01, momentum=0.9)
        self.opt_head = torch.optim.SGD(self.heads.parameters(), lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def losses(self, x, y, t):
        with torch.autocast("cpu", dtype=torch.float16):
            logits, reg = self.heads(self.encoder(x))
            return F.cross_entropy(logits.float(), y) + 0.5 * F.mse_loss(reg.float(), t)

    def step(self, batch):
        self.opt_enc.zero_grad()
        self.opt_head.zero_grad()
        loss = self.losses(*batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt_head)
        self.opt_enc.step()
        self.scaler.update()
        return loss.item()


def main(steps=160):
    torch.manual_seed(0)
    trainer = Trainer()
    window = []
    for i, batch in enumerate(stream(steps)):
        window.append(trainer.step(batch))
        if (i + 1) % 20 == 0:
            print(f"step {i + 1}: loss {sum(window) / len(window):.4f} scale {trainer.scaler.get_scale():g}")
            window.clear()


if __name__ == "__main__":
    main()
