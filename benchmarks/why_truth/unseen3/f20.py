"""Digit-like image classification, SGD + momentum with gradient clipping."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def glyphs(n, seed):
    rng = np.random.default_rng(seed)
    proto = (np.random.default_rng(123).random((10, 8, 8)) < 0.35).astype(np.float32)
    y = rng.integers(0, 10, n)
    x = proto[y]
    sh = rng.integers(-1, 2, (n, 2))
    x = np.stack([np.roll(im, tuple(s), (0, 1)) for im, s in zip(x, sh)])
    x = x + 0.35 * rng.standard_normal(x.shape)
    return torch.tensor(x[:, None], dtype=torch.float32), torch.tensor(y)


class ConvNet(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.conv1 = nn.Conv2d(1, ch, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(ch)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1, stride=2)
        self.bn2 = nn.BatchNorm2d(ch)
        self.fc = nn.Linear(ch * 16, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


class Engine:
    def __init__(self, model, lr=0.05, clip=1.0):
        self.model = model
        self.clip = clip
        self.opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8192.0)

    def train_step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item(), norm.item()

    @torch.no_grad()
    def test(self, loader):
        self.model.eval()
        hit = n = 0
        for x, y in loader:
            hit += (self.model(x).argmax(-1) == y).sum().item()
            n += len(y)
        self.model.train()
        return hit / n


def main():
    torch.manual_seed(1)
    train = DataLoader(TensorDataset(*glyphs(1000, 0)), batch_size=25, shuffle=True)
    test = DataLoader(TensorDataset(*glyphs(400, 1)), batch_size=100)
    eng = Engine(ConvNet())
    for epoch in range(4):
        losses = []
        for i, (x, y) in enumerate(train):
            loss, norm = eng.train_step(x, y)
            losses.append(loss)
            if i % 10 == 0:
                print(f"epoch {epoch} it {i} loss {loss:.4f}")
        print(f"epoch {epoch} mean loss {np.mean(losses):.4f} test acc {eng.test(test):.4f}")
    print(f"final test accuracy {eng.test(test):.4f}")


if __name__ == "__main__":
    main()
