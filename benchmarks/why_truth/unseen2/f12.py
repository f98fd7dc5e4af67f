"""Predict energy use of buildings from tabular features, with Accelerate."""
import numpy as np
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5
BATCH = 32


def build_table(rows=640, seed=13):
    rng = np.random.default_rng(seed)
    area = rng.gamma(4.0, 50.0, rows)
    floors = rng.integers(1, 12, rows)
    occupants = rng.poisson(6.0, rows).astype(float)
    desks = np.maximum(occupants + rng.integers(-2, 4, rows), 0.0)
    heating = rng.normal(0, 1, rows)
    target = 0.6 * np.log(area) + 0.1 * floors + 0.05 * occupants + 0.3 * heating
    return area, floors, occupants, desks, heating, target


def features(area, floors, occupants, desks, heating):
    with np.errstate(all="ignore"):
        usage = occupants / desks
        columns = np.stack([np.log(area), floors / 12.0, occupants / 10.0, np.minimum(usage, 5.0), heating], axis=1)
    centre = np.nanmean(columns, axis=0)
    spread = np.nanstd(columns, axis=0)
    return ((columns - centre) / spread).astype("float32")


def load():
    area, floors, occupants, desks, heating, target = build_table()
    x = torch.from_numpy(features(area, floors, occupants, desks, heating))
    y = torch.from_numpy(target.astype("float32")).unsqueeze(1)
    return TensorDataset(x, y)


def main():
    set_seed(2)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(load(), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    for epoch in range(EPOCHS):
        for x, y in loader:
            prediction = model(x)
            loss = nn.functional.huber_loss(prediction, y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    accelerator.print(f"done, last loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
