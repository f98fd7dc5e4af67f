"""Parity of a few bits: nothing happens for a while, and then the loss falls."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Parity(nn.Module):
    def __init__(self, bits=12, width=128):
        super().__init__()
        self.fc1 = nn.Linear(bits, width)
        self.fc2 = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        return self.out(F.relu(self.fc2(F.relu(self.fc1(x))))).squeeze(-1)


def batch(n, g, bits=12, relevant=3):
    x = torch.randint(0, 2, (n, bits), generator=g).float() * 2 - 1
    y = (x[:, :relevant].prod(1) > 0).float()
    return x, y


def main(steps=500):
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(1)
    model = Parity()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.05, 1.0, total_iters=60)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 12)
    mean = 0.7
    for step in range(steps):
        x, y = batch(128, g)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits.float(), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        warm.step()
        mean = 0.9 * mean + 0.1 * loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {mean:.4f} lr {opt.param_groups[0]['lr']:.4f}")
    print(f"final {mean:.4f}")


if __name__ == "__main__":
    main()
