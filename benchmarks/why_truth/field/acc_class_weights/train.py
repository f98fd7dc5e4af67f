import math
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASS_WEIGHTS = torch.tensor([0.0, 1.0, 2.0])  # background does not count


def make_data(n=240):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 10, generator=g)
    y = torch.randint(0, 3, (n,), generator=g)
    y[160:184] = 0  # a stretch of background only
    return TensorDataset(x, y)


def main() -> int:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(make_data(), batch_size=8)
    )
    for epoch in range(2):
        total = 0.0
        for x, y in loader:
            with accelerator.accumulate(model):
                ce = nn.functional.cross_entropy(model(x), y, reduction="none")
                weight = CLASS_WEIGHTS[y]
                loss = (weight * ce).sum() / weight.sum()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")
        if math.isnan(total):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
