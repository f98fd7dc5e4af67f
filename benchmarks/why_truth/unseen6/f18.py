"""Small residual CNN on the sklearn digits."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.na = nn.GroupNorm(4, c)
        self.b = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.nb = nn.GroupNorm(4, c)

    def forward(self, x):
        h = F.relu(self.na(self.a(x)))
        return F.relu(x + self.nb(self.b(h)))


def build(width=8):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), Block(width), nn.MaxPool2d(2),
        Block(width), nn.Flatten(), nn.Linear(width * 16, 10),
    )


class Trainer:
    def __init__(self, model, lr, max_norm):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.scaler = torch.amp.GradScaler("cpu")
        self.max_norm = max_norm
        self.seen = 0

    def training_step(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y, label_smoothing=0.05)
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.seen += 1
        if self.seen % 25 == 0:
            print(f"step {self.seen} loss {loss.item():.4f}")

    @torch.no_grad()
    def accuracy(self, x, y):
        self.model.eval()
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(x)
        return (out.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(5)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(d.target)
    perm = torch.randperm(len(x))
    x, y = x[perm], y[perm]
    tr = Trainer(build(), lr=0.05, max_norm=1.0)
    for _ in range(5):
        for idx in torch.randperm(1400).split(64):
            tr.training_step(x[idx], y[idx])
    print(f"val_acc {tr.accuracy(x[1400:], y[1400:]):.4f}")


if __name__ == "__main__":
    main()
