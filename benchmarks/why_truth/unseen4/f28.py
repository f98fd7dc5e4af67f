"""Face-style metric learning with a fused cosine head (custom autograd) and Accelerate."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class UnitNorm(torch.autograd.Function):
    """x / |x| with a hand written backward that keeps only x and its squared norm."""
    @staticmethod
    def forward(ctx, x):
        sq = (x * x).sum(-1, keepdim=True)
        ctx.save_for_backward(x, sq)
        return x / sq.sqrt()

    @staticmethod
    def backward(ctx, grad):
        x, sq = ctx.saved_tensors
        dot = (grad * x).sum(-1, keepdim=True)
        return (grad * sq - x * dot) / (sq * sq.sqrt())


class Embedder(nn.Module):
    def __init__(self, dim=32, out=16, ids=12, scale=16.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, out, bias=False))
        # residual-style start: embeddings begin small
        nn.init.normal_(self.body[2].weight, std=4e-5)
        self.centres = nn.Parameter(torch.randn(ids, out))
        self.scale = scale

    def forward(self, x):
        z = UnitNorm.apply(self.body(x))
        c = F.normalize(self.centres, dim=-1)
        return self.scale * z @ c.to(z.dtype).T


def faces(n, seed, ids=12, dim=32):
    w = torch.Generator().manual_seed(3)
    proto = torch.randn(ids, dim, generator=w)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, ids, (n,), generator=g)
    return proto[y] + 0.9 * torch.randn(n, dim, generator=g), y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--no-amp", dest="amp", action="store_false")
    args = ap.parse_args()
    torch.manual_seed(0)
    acc = Accelerator(cpu=not torch.cuda.is_available())
    dev = acc.device.type
    train = DataLoader(TensorDataset(*faces(1024, 0)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*faces(512, 1)), batch_size=512)
    model = Embedder()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, opt, train, valid = acc.prepare(model, opt, train, valid)
    for ep in range(args.epochs):
        for x, y in train:
            with torch.autocast(dev, dtype=torch.float16, enabled=args.amp):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y)
            acc.backward(loss)
            opt.step()
            opt.zero_grad()
        with torch.no_grad():
            hit = sum((model(x).argmax(-1) == y).sum().item() for x, y in valid)
        acc.print(f"epoch {ep} loss {loss.item():.4f} val_acc {hit / 512:.3f}")


if __name__ == "__main__":
    main()
