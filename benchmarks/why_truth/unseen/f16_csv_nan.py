"""Tabular churn model from a CSV, BF16 autocast, two DataLoader workers."""
import csv
import os
import random
import tempfile

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

COLUMNS = ["age", "tenure", "monthly", "support_calls", "gb_used"]


def export_csv(path, rows=1500):
    rng = random.Random(0)
    with open(path, "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(COLUMNS + ["churn"])
        for i in range(rows):
            age, tenure = rng.randint(18, 80), rng.randint(0, 72)
            monthly, calls = round(rng.uniform(5, 120), 2), rng.randint(0, 9)
            gb = round(rng.expovariate(0.1), 2)
            churn = int(monthly / 60 + calls / 4 - tenure / 30 + rng.gauss(0, 0.3) > 0.8)
            row = [age, tenure, monthly, calls, gb, churn]
            if i == 911:
                row[4] = "nan"
            writer.writerow(row)


class Churn(Dataset):
    scale = torch.tensor([80.0, 72.0, 120.0, 9.0, 60.0])

    def __init__(self, path):
        with open(path) as f:
            rows = list(csv.DictReader(f))
        self.x = torch.tensor([[float(r[c]) for c in COLUMNS] for r in rows])
        self.y = torch.tensor([float(r["churn"]) for r in rows])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i] / self.scale, self.y[i]


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    torch.manual_seed(0)
    path = os.path.join(tempfile.gettempdir(), "f16_churn.csv")
    export_csv(path)
    loader = DataLoader(Churn(path), batch_size=50, shuffle=True, num_workers=2)
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(3):
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x)
            loss = criterion(out.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 10 == 0:
                print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
