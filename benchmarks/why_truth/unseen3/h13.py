"""Lightning, bf16-mixed, early stopping: the run ends long before max_epochs."""
import logging
import warnings

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def rings(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    r = 1.0 + y + 0.25 * rng.standard_normal(n)
    a = rng.uniform(0, 6.283, n)
    x = np.column_stack([r * np.cos(a), r * np.sin(a)])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


class RingModel(L.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))
        self.best = float("inf")

    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self.net(x).float(), y)
        if i == 0:
            print(f"epoch {self.current_epoch} loss {loss.item():.4f} best val {self.best:.4f}")
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        out = self.net(x).float()
        loss = F.cross_entropy(out, y)
        self.best = min(self.best, loss.item())
        self.log("val_loss", loss)
        self.log("val_acc", (out.argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-2)


def main():
    L.seed_everything(0, verbose=False)
    train = DataLoader(TensorDataset(*rings(800, 0)), batch_size=40, shuffle=True)
    val = DataLoader(TensorDataset(*rings(400, 1)), batch_size=400)
    stop = EarlyStopping("val_loss", patience=3, check_finite=True)
    trainer = L.Trainer(max_epochs=40, accelerator="cpu", devices=1, precision="bf16-mixed", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[stop])
    model = RingModel()
    trainer.fit(model, train, val)
    print(f"stopped after epoch {trainer.current_epoch}")
    res = trainer.validate(model, val, verbose=False)[0]
    print(f"final val accuracy {res['val_acc']:.4f}")


if __name__ == "__main__":
    main()
