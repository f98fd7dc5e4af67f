"""Gesture classifier (accelerometer windows) trained in true half with Lightning; keeps the best epoch."""
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


def windows(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    t = torch.arange(20).float()
    f = torch.tensor([0.2, 0.5, 0.9])[y]
    x = torch.sin(f[:, None] * t + 6.28 * torch.rand(n, 1, generator=g))
    x = torch.cat([x, x.roll(1, 1) * 0.5], 1) + 0.2 * torch.randn(n, 40, generator=g)
    return x, y


class Confusion(nn.Module):
    """Confusion counts live in a buffer so that they move with the module."""
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("counts", torch.zeros(classes, classes))
        self.total = 0

    def reset(self):
        self.counts.zero_()
        self.total = 0

    def update(self, logits, y):
        for t, p in zip(y.tolist(), logits.argmax(-1).tolist()):
            self.counts[t, p] += 1
        self.total += len(y)

    def accuracy(self):
        return self.counts.diagonal().float().sum().item() / self.total


class Gesture(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 3))
        self.conf = Confusion(3)

    def training_step(self, batch, idx):
        x, y = batch
        return F.cross_entropy(self.net(x).float(), y)

    def on_validation_epoch_start(self):
        self.conf.reset()

    def validation_step(self, batch, idx):
        x, y = batch
        self.conf.update(self.net(x), y)

    def on_validation_epoch_end(self):
        acc = self.conf.accuracy()
        self.log("val_acc", acc)
        print(f"epoch {self.current_epoch} val_acc {acc:.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--precision", default="16-true")
    p.add_argument("--epochs", type=int, default=3)
    args = p.parse_args()
    L.seed_everything(0, verbose=False)
    train = DataLoader(TensorDataset(*windows(2048, 0)), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*windows(9000, 1)), batch_size=500)
    trainer = L.Trainer(max_epochs=args.epochs, precision=args.precision, accelerator="auto", devices=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        num_sanity_val_steps=0)
    trainer.fit(Gesture(0.05), train, valid)
