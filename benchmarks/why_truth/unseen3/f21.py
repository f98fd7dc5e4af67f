"""Energy consumption regression with Lightning in pure bfloat16."""
import warnings
import logging

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def load(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 10)).astype(np.float32)
    y = np.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * np.abs(x[:, 3]) - 0.6 * x[:, 4] + 0.05 * rng.standard_normal(n)
    return torch.from_numpy(x), torch.tensor((y - 0.4) / 1.4, dtype=torch.float32)


class EnergyModel(L.LightningModule):
    def __init__(self, lr=7e-4, width=48):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Linear(10, width), nn.SiLU(),
            nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, 1),
        )
        for m in self.net:
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight, gain=1.4)
                nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.net(x).squeeze(-1)

    def training_step(self, batch, idx):
        x, y = batch
        loss = F.mse_loss(self(x).float(), y.float())
        if self.global_step % 60 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, idx):
        x, y = batch
        self.log("val_mse", F.mse_loss(self(x).float(), y.float()))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.0)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.trainer.max_epochs)
        return [opt], [sched]


def main():
    L.seed_everything(5, verbose=False)
    train = DataLoader(TensorDataset(*load(2000, 0)), batch_size=50, shuffle=True)
    val = DataLoader(TensorDataset(*load(600, 1)), batch_size=300)
    model = EnergyModel()
    trainer = L.Trainer(
        max_epochs=10, accelerator="cpu", devices=1, precision="bf16-true", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(model, train, val)
    res = trainer.validate(model, val, verbose=False)
    print(f"final val mse {res[0]['val_mse']:.4f}")


if __name__ == "__main__":
    main()
