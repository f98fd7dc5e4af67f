"""Small CNN on synthetic shape images, SGD + momentum, mixed precision."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_shapes(n, size=16, seed=0):
    """Squares, crosses, horizontal and vertical bars on a noisy background."""
    g = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(n, 1, size, size, generator=g)
    y = torch.randint(0, 4, (n,), generator=g)
    pos = torch.randint(2, size - 8, (n, 2), generator=g)
    for i in range(n):
        r, c = pos[i].tolist()
        k = y[i].item()
        if k == 0:
            x[i, 0, r:r + 6, c:c + 6] += 1.0
        elif k == 1:
            x[i, 0, r + 2:r + 4, c:c + 6] += 1.0
            x[i, 0, r:r + 6, c + 2:c + 4] += 1.0
        elif k == 2:
            x[i, 0, r + 2:r + 4, c:c + 6] += 1.0
        else:
            x[i, 0, r:r + 6, c + 2:c + 4] += 1.0
    return x, y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4 * 4, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.fc(x.flatten(1))


class Trainer:
    def __init__(self, model, args, device):
        self.model = model.to(device)
        self.device = device
        self.args = args
        self.opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, args.epochs)
        self.scaler = torch.amp.GradScaler(device, enabled=args.amp)

    def train_epoch(self, loader):
        self.model.train()
        total = 0.0
        for x, y in loader:
            x, y = x.to(self.device), y.to(self.device)
            with torch.autocast(self.device, dtype=torch.float16, enabled=self.args.amp):
                loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
            self.scaler.step(self.opt)
            self.scaler.update()
            total += loss.item() * x.size(0)
        self.sched.step()
        return total / len(loader.dataset)

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        hits = 0
        for x, y in loader:
            with torch.autocast(self.device, dtype=torch.float16, enabled=self.args.amp):
                out = self.model(x.to(self.device))
            hits += (out.argmax(1).cpu() == y).sum().item()
        return hits / len(loader.dataset)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--clip", type=float, default=1.0)
    ap.add_argument("--amp", type=int, default=1)
    args = ap.parse_args()
    args.amp = bool(args.amp)
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tr = DataLoader(TensorDataset(*make_shapes(1024)), batch_size=32, shuffle=True)
    va = DataLoader(TensorDataset(*make_shapes(400, seed=7)), batch_size=128)
    t = Trainer(Net(), args, device)
    for ep in range(args.epochs):
        loss = t.train_epoch(tr)
        print(f"epoch {ep} loss {loss:.4f} val_acc {t.evaluate(va):.3f}")
