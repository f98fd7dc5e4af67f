"""Prototype classifier: class sums are kept in a buffer across all batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class PrototypeHead(nn.Module):
    def __init__(self, dim, classes, dtype=torch.float16):
        super().__init__()
        self.register_buffer("sums", torch.zeros(classes, dim, dtype=dtype))
        self.register_buffer("counts", torch.zeros(classes, dtype=dtype))

    @torch.no_grad()
    def observe(self, feats, labels):
        self.sums.index_add_(0, labels, feats.to(self.sums.dtype))
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=self.counts.dtype))

    def forward(self, feats):
        protos = self.sums / self.counts.clamp(min=1)[:, None]
        return -torch.cdist(feats.float(), protos.float()) * 0.2


class Backbone(nn.Module):
    def __init__(self, d_in=40, dim=24):
        super().__init__()
        self.stem = nn.Linear(d_in, 64)
        self.out = nn.Linear(64, dim)

    def forward(self, x):
        return 40 * F.softplus(self.out(torch.relu(self.stem(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = PrototypeHead(24, 10)

    def forward(self, x, y=None):
        f = self.backbone(x)
        if self.training and y is not None:
            self.head.observe(f, y)
        return self.head(f)


def sample(centers, n, g):
    y = torch.randint(0, 10, (n,), generator=g)
    return centers[y] + 0.6 * torch.randn(n, 40, generator=g), y


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    centers = torch.randn(10, 40, generator=g)
    model = Model()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for it in range(400):
        x, y = sample(centers, 64, g)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x, y)
        loss = F.cross_entropy(logits.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 25 == 0:
            acc = (logits.argmax(-1) == y).float().mean().item()
            print(f"it {it} loss {loss.item():.4f} acc {acc:.2f}")


if __name__ == "__main__":
    main()
