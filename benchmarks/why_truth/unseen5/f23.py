"""OCR of single glyphs rendered from 7x5 bitmaps with jitter; small MLP, SGD + cosine."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GlyphData:
    def __init__(self, n_glyphs=12, seed=23):
        self.g = torch.Generator().manual_seed(seed)
        self.bitmaps = (torch.rand(n_glyphs, 7, 5, generator=self.g) > 0.5).float()

    def sample(self, n):
        y = torch.randint(len(self.bitmaps), (n,), generator=self.g)
        x = torch.zeros(n, 1, 9, 7)
        dy = torch.randint(0, 3, (n,), generator=self.g)
        dx = torch.randint(0, 3, (n,), generator=self.g)
        for i in range(n):
            x[i, 0, dy[i]:dy[i] + 7, dx[i]:dx[i] + 5] = self.bitmaps[y[i]]
        return x + 0.15 * torch.randn(x.shape, generator=self.g), y


class GlyphNet(nn.Module):
    def __init__(self, n_cls):
        super().__init__()
        self.fc1 = nn.Linear(63, 96)
        self.bn1 = nn.BatchNorm1d(96)
        self.fc2 = nn.Linear(96, 64)
        self.bn2 = nn.BatchNorm1d(64)
        self.out = nn.Linear(64, n_cls)

    def forward(self, x):
        x = F.relu(self.bn1(self.fc1(x.flatten(1))))
        x = F.relu(self.bn2(self.fc2(x)))
        return self.out(x)


class Trainer:
    def __init__(self, model, lr=0.05, clip=1.0, total=160):
        self.model = model
        self.clip = clip
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, total)
        self.scaler = torch.amp.GradScaler("cpu")

    def step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.sched.step()
        return loss.item()

    @torch.no_grad()
    def accuracy(self, x, y):
        self.model.eval()
        with torch.autocast("cpu", dtype=torch.float16):
            acc = (self.model(x).argmax(1) == y).float().mean().item()
        self.model.train()
        return acc


def main():
    torch.manual_seed(23)
    data = GlyphData()
    x, y = data.sample(1280)
    xv, yv = data.sample(400)
    tr = Trainer(GlyphNet(12))
    for epoch in range(8):
        losses = []
        for idx in torch.randperm(len(x)).split(64):
            losses.append(tr.step(x[idx], y[idx]))
        print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} acc {tr.accuracy(xv, yv):.3f}")
    print(f"val_acc {tr.accuracy(xv, yv):.4f}")


if __name__ == "__main__":
    main()
