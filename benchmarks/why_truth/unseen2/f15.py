"""Lightning classifier with a warm-up plus cosine schedule written by hand."""
import math

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4
FEATURES = 10
EPOCHS = 10
BATCH = 32
WARMUP_FRACTION = 0.1


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    centre = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    return TensorDataset(centre[y] * 1.5 + torch.randn(n, FEATURES, generator=g), y)


def lr_factors(total, warmup):
    """One factor for every optimizer step."""
    step = np.arange(total + 1, dtype=np.float32)
    up = (step + 1) / (warmup + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        progress = np.clip((step - warmup) / (total - warmup), 0, 1)
    down = 0.5 * (1 + np.cos(math.pi * progress))
    return np.where(step < warmup, up, down)


class Classifier(L.LightningModule):
    def __init__(self, steps_per_epoch, lr=1e-2):
        super().__init__()
        self.lr = lr
        self.total = steps_per_epoch
        self.warmup = int(steps_per_epoch * EPOCHS * WARMUP_FRACTION)
        self.net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        if self.global_step % 10 == 0:
            rate = self.optimizers().param_groups[0]["lr"]
            print(f"step {self.global_step:3d} loss {loss.item():.4f} lr {rate:.6f}")
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr * 10, momentum=0.9)
        factors = lr_factors(self.total, self.warmup)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: float(factors[min(s, len(factors) - 1)]))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(5)
    loader = DataLoader(spirals(320, 1), batch_size=BATCH, shuffle=True)
    trainer = L.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Classifier(len(loader)), loader)
