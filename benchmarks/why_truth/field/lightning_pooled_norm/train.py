import argparse

import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=192):
        g = torch.Generator().manual_seed(1)
        self.a = torch.randn(n, 20, generator=g)
        self.b = self.a + 0.1 * torch.randn(n, 20, generator=g)
        self.a[77] = 0  # an empty document

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return self.a[i], self.b[i]


class TwoTower(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.tower = nn.Sequential(nn.Linear(20, 40, bias=False), nn.ReLU(), nn.Linear(40, 16, bias=False))

    def embed(self, x):
        h = self.tower(x)
        return h / h.norm(dim=-1, keepdim=True)

    def training_step(self, batch, _):
        left, right = map(self.embed, batch)
        scores = left @ right.T / 0.1
        return F.cross_entropy(scores, torch.arange(len(scores)))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_epochs=args.epochs, precision="bf16-mixed", accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(TwoTower(args.lr), DataLoader(Pairs(), batch_size=32))


if __name__ == "__main__":
    main()
