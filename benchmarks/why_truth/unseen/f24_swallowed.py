"""Point-cloud segmentation. Batches that fail are skipped so that the night run survives."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x, valid):
        q, k, v = self.qkv(x).chunk(3, -1)
        logits = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        logits = logits.masked_fill(~valid[:, None, :], -1e9)
        return self.out(torch.softmax(logits, -1) @ v)


class Segmenter(nn.Module):
    def __init__(self, d=32, classes=3):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.att = LocalAttention(d)
        self.head = nn.Linear(d, classes)

    def forward(self, pts, valid):
        h = self.embed(pts)
        return self.head(h + self.att(h, valid))


def clouds(bs, g, n=40):
    pts = torch.randn(bs, n, 3, generator=g)
    label = (pts[..., 0] > 0).long() + (pts[..., 2] > 0.5).long()
    length = torch.randint(n // 2, n + 1, (bs, 1), generator=g)
    valid = torch.arange(n)[None] < length
    return pts, label.masked_fill(~valid, -100), valid


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Segmenter()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    eval_set = clouds(64, torch.Generator().manual_seed(99))
    failed = 0
    for step in range(args.steps):
        pts, label, valid = clouds(16, g)
        try:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(pts, valid)
            loss = F.cross_entropy(logits.float().flatten(0, 1), label.flatten())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        except RuntimeError:
            failed += 1
            continue
        finally:
            if step % 20 == 0:
                with torch.no_grad():
                    ev = F.cross_entropy(model(eval_set[0], eval_set[2]).flatten(0, 1), eval_set[1].flatten())
                print(f"step {step} eval loss {ev.item():.4f}")


if __name__ == "__main__":
    main()
