"""FP16 with accumulation and clipping for a small autoencoder."""
import argparse

import torch
from torch import nn


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--updates", type=int, default=60)
    p.add_argument("--accumulate", type=int, default=3)
    p.add_argument("--clip", type=float, default=0.5)
    p.add_argument("--lr", type=float, default=1e-2)
    return p.parse_args()


class AutoEncoder(nn.Module):
    def __init__(self, inputs=20, code=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, inputs))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    args = parse_args()
    torch.manual_seed(6)
    basis = torch.randn(3, 20)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    for update in range(args.updates):
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for _ in range(args.accumulate):
            x = torch.randn(16, 3) @ basis
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), x) / args.accumulate
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        if update % 6 == 0 or update == args.updates - 1:
            print(f"update {update:3d} loss {total:.4f} norm before clipping {norm.item():.3f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
