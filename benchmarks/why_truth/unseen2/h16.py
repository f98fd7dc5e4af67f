"""Accelerate BF16: a table with missing values (NaN) that are replaced and flagged in the model."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

COLUMNS = 8


def table(n):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(n, COLUMNS, generator=g)
    y = (x[:, :3].sum(1) > 0).long()
    x[torch.rand(n, COLUMNS, generator=g) < 0.15] = float("nan")
    return TensorDataset(x, y)


class MissingAware(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * COLUMNS, 48), nn.GELU(), nn.Linear(48, 2))

    def forward(self, x):
        missing = torch.isnan(x)
        known = torch.nan_to_num(x, nan=0.0)
        return self.net(torch.cat([known, missing.to(known.dtype)], dim=-1))


def main():
    set_seed(11)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = MissingAware()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(table(1280), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    for epoch in range(4):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 16 == 0:
                accelerator.print(f"epoch {epoch} step {step:3d} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()
