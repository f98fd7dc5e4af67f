"""Lightning: two-tower retrieval; text tower in half through autocast."""
import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def pairs(n=640):
    g = torch.Generator().manual_seed(13)
    latent = torch.randn(n, 6, generator=g)
    query = (latent @ torch.randn(6, 20, generator=g)).relu()
    item = (latent @ torch.randn(6, 24, generator=g)).relu()
    item[torch.arange(n) % 90 == 77] = 0  # items without a description
    return TensorDataset(query, item)


class Tower(nn.Module):
    def __init__(self, d_in, d=24):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d_in, 64, bias=False), nn.ReLU(), nn.Linear(64, d, bias=False))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=-1)


class Retrieval(L.LightningModule):
    def __init__(self, lr, temperature=0.1):
        super().__init__()
        self.lr, self.temperature = lr, temperature
        self.q_tower, self.i_tower = Tower(20), Tower(24)

    def similarity(self, q, it):
        with torch.autocast("cpu", dtype=torch.float16):
            return self.q_tower(q) @ self.i_tower(it).t() / self.temperature

    def training_step(self, batch, idx):
        logits = self.similarity(*batch).float()
        target = torch.arange(len(logits))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        if self.global_step % 10 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    L.seed_everything(1)
    trainer = L.Trainer(max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Retrieval(args.lr), DataLoader(pairs(), batch_size=32, shuffle=True))


if __name__ == "__main__":
    main()
