import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--epochs", type=int, default=4)
    return p.parse_args()


def main(args):
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu")
    accelerator.scaler.scale(torch.ones(()))  # creates the scale on this device
    torch.manual_seed(1)
    x = torch.randn(1024, 16)
    y = (x[:, :4].sum(1) > 0).float()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loader = torch.utils.data.DataLoader(list(zip(x, y)), batch_size=64)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(xb).squeeze(1), yb)
            loss.backward()
            optimizer.step()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main(get_args())
