"""CenterNet-like keypoint heatmaps, trained in half with FP32 master weights."""
import argparse

import torch
import torch.nn as nn


class UNetish(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1), nn.ReLU())
        self.up = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, x):
        return self.up(self.down(x))


def keypoint_batch(n, size, g):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy = torch.randint(8, size - 8, (n, 1, 1), generator=g)
    cx = torch.randint(8, size - 8, (n, 1, 1), generator=g)
    d2 = (yy - cy) ** 2 + (xx - cx) ** 2
    heat = torch.exp(-d2 / 50.0)[:, None]
    image = (d2 < 16).float()[:, None] * 2 + 0.1 * torch.randn(n, 1, size, size, generator=g)
    return image, heat


class HeatmapLoss(nn.Module):
    """Root of the squared error per object, summed over its pixels."""

    def forward(self, pred, target, num_objects):
        err = (pred - target) ** 2
        return torch.sqrt(err.sum() / num_objects)


def main(args):
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    net = UNetish()
    nn.init.constant_(net.up.bias, 1.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    criterion = HeatmapLoss()
    for it in range(args.iters):
        images, heat = keypoint_batch(args.batch_size, args.size, g)
        with torch.autocast("cpu", dtype=torch.float16):
            pred = net(images)
            loss = criterion(pred, heat.half(), args.batch_size)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if it % 5 == 0:
            print(f"iter {it:3d} loss {loss.item():.2f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=30)
    ap.add_argument("--size", type=int, default=96)
    ap.add_argument("--batch-size", type=int, default=12)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=0)
    main(ap.parse_args())
