# Pure-half training with a static loss scale, ported from an old apex recipe.
import argparse
import os
import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOSS_SCALE = 2.0 ** 12


def build(args):
    model = nn.Sequential(nn.Linear(20, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    return model.half(), optimizer


def data():
    torch.manual_seed(30)
    x = torch.randn(640, 20)
    y = x[:, :4].sum(1, keepdim=True) + 0.1 * torch.randn(640, 1)
    y[424:432] *= 60  # typo in the spreadsheet
    return TensorDataset(x.half(), y.half())


def divide_gradients(model):
    for p in model.parameters():
        p.grad.div_(LOSS_SCALE)


def run(args):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(args.seed)
    model, optimizer = build(args)
    loader = DataLoader(data(), batch_size=8, shuffle=False)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    done = 0
    for epoch in range(args.epochs):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).float(), y.float())
            optimizer.zero_grad()
            accelerator.backward(loss * LOSS_SCALE)
            divide_gradients(model)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            done += 1
            if done % 6 == 0:
                accelerator.print(f"step={done} loss={loss.item():.4f}")
        accelerator.save_state(os.path.join(args.out, f"epoch_{epoch}"))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--epochs", type=int, default=1)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--out", default=tempfile.mkdtemp())
    run(ap.parse_args())
