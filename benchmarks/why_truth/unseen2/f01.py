"""Forecast the next reading of a group of flow meters with one attention layer over the history."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
METERS, HISTORY, BATCH = 6, 12, 8
mix = torch.randn(METERS, METERS) / METERS**0.5


def make_batch(step):
    # the plant runs up to full load during the first part of the record
    load = 10.0 + 130.0 * min(1.0, step / 60)
    level = load * (1 + 0.3 * torch.randn(BATCH, 1, METERS))
    wave = torch.sin(torch.arange(HISTORY)[None, :, None] * 0.7 + 6.28 * torch.rand(BATCH, 1, METERS))
    x = level * (1 + 0.3 * wave)
    target = (x[:, -3:].mean(1) @ mix) / load
    return x, target


class HistoryAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = width**-0.5
        self.query = nn.Linear(METERS, width)
        self.key = nn.Linear(METERS, width)
        self.value = nn.Linear(METERS, width)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        weights = F.softmax(scores, dim=-1)
        return torch.matmul(weights, v)


class Forecaster(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = HistoryAttention(width)
        self.norm = nn.LayerNorm(width)
        self.skip = nn.Linear(METERS, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, METERS))

    def forward(self, x):
        h = self.norm(self.attention(x)[:, -1]) + self.skip(x[:, -1] / x.mean((1, 2)).unsqueeze(1))
        return self.head(h)


model = Forecaster(args.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

for step in range(args.steps):
    x, target = make_batch(step)
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = model(x)
        loss = F.mse_loss(prediction.float(), target)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == args.steps - 1:
        print(f"step {step:4d}  loss {loss.item():.4f}  scale {scaler.get_scale():g}")
