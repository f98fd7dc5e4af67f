"""Bundle-adjust pixel tracks: refine keypoints of 1080p frames together with a small offset net."""
import argparse

import torch
import torch.nn as nn


class Tracks(nn.Module):
    """2-D keypoints in pixels, kept in half to fit many of them."""

    def __init__(self, init, dtype):
        super().__init__()
        self.points = nn.Parameter(init.to(dtype))
        self.drift = nn.Parameter(torch.zeros(2, dtype=dtype))

    def forward(self, frame_shift):
        return self.points[None] + self.drift + frame_shift[:, None]


class Frames:
    def __init__(self, n_points=256, n_frames=32):
        g = torch.Generator().manual_seed(3)
        self.true = torch.stack([torch.rand(n_points, generator=g) * 900 + 1000,
                                 torch.rand(n_points, generator=g) * 400 + 600], -1)
        self.shift = torch.randn(n_frames, 2, generator=g) * 0.5
        self.observed = self.true[None] + self.shift[:, None]
        self.g = g

    def noisy_init(self):
        return self.true + 6.0 * torch.randn(self.true.shape, generator=self.g)

    def batches(self, size):
        for idx in torch.randperm(len(self.shift)).split(size):
            yield self.shift[idx], self.observed[idx]


def reprojection(pred, observed):
    return (pred.float() - observed).abs().mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.1)
    ap.add_argument("--epochs", type=int, default=50)
    args = ap.parse_args()
    torch.manual_seed(0)
    data = Frames()
    tracks = Tracks(data.noisy_init(), torch.float16)
    opt = torch.optim.Adam(tracks.parameters(), lr=args.lr, eps=1e-4)
    for epoch in range(args.epochs):
        total = 0.0
        for shift, obs in data.batches(8):
            pred = tracks(shift.half())
            loss = reprojection(pred, obs)
            opt.zero_grad()
            (loss * 512.0).backward()
            opt.step()
            total += loss.item()
        if epoch % 5 == 0:
            print(f"epoch {epoch:2d} mean error {total / 4:.3f} px")


if __name__ == "__main__":
    main()
