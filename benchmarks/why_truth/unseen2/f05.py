"""Learn camera headings: predict a unit direction from noisy landmarks, angular error as the loss."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--batch-size", type=int, default=32)
    ap.add_argument("--lr", type=float, default=3e-3)
    return ap.parse_args()


class HeadingNet(nn.Module):
    def __init__(self, inputs=12, hidden=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.head(self.trunk(x))


def angular_loss(pred, target):
    pred = F.normalize(pred, dim=-1, eps=1e-4)
    cosine = (pred * target.to(pred.dtype)).sum(-1)
    cosine = cosine.clamp(-1 + 1e-6, 1 - 1e-6)
    return torch.acos(cosine).mean()


def sample(projection, n):
    direction = F.normalize(torch.randn(n, 3), dim=-1)
    landmarks = direction @ projection + 0.01 * torch.randn(n, projection.shape[1])
    return landmarks, direction


def main():
    args = get_args()
    torch.manual_seed(5)
    projection = torch.randn(3, 12)
    model = HeadingNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    for step in range(args.steps):
        x, target = sample(projection, args.batch_size)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = angular_loss(model(x), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 15 == 0 or step == args.steps - 1:
            degrees = loss.item() * 57.2958
            print(f"step {step:3d} error {degrees:7.3f} deg  grad norm {norm.item():.3f}  scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
