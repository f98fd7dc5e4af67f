"""Tiny vision transformer on synthetic images, mixed precision."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.scale = self.head_dim ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = q @ k.transpose(-2, -1)
        attn = (attn * self.scale).softmax(dim=-1)
        out = (attn @ v).transpose(1, 2).reshape(b, n, d)
        return self.proj(out)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = Attention(dim, heads)
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(self.norm(x))


class ViT(nn.Module):
    def __init__(self, dim=128, heads=2, depth=2, classes=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, kernel_size=4, stride=4)
        self.pos = nn.Parameter(torch.randn(1, 16, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x).mean(dim=1))


def make_data(n=192):
    g = torch.Generator().manual_seed(3)
    y = torch.randint(0, 4, (n,), generator=g)
    img = torch.randint(0, 120, (n, 3, 16, 16), generator=g).float()
    for i, c in enumerate(y.tolist()):
        img[i, c % 3, (c // 2) * 8:(c // 2) * 8 + 8] += 130
    return TensorDataset(img, y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--lr", type=float, default=3e-4)
    args = p.parse_args()
    torch.manual_seed(0)
    model = ViT()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu")
    loader = DataLoader(make_data(), batch_size=32, shuffle=True)
    for epoch in range(args.epochs):
        total = 0.0
        for img, y in loader:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(img)
                loss = F.cross_entropy(logits, y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
