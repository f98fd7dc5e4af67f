"""Lightning regression of ad spend -> conversions, log features, bf16-mixed."""
import logging
import warnings
import numpy as np
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def load_table(n=6000, seed=21):
    rng = np.random.default_rng(seed)
    impressions = rng.lognormal(6, 0.7, n).round()
    clicks = rng.binomial(impressions.astype(int), 0.04).astype(float)
    spend = clicks * rng.uniform(0.2, 1.5, n) + 1.0
    channel = rng.integers(0, 4, n)
    conv = 0.1 * np.sqrt(clicks) * (1 + 0.4 * channel) + 0.15 * np.log(spend) * (channel == 2)
    target = conv + rng.normal(0, 0.1, n)
    feats = np.stack([np.log(impressions), np.log(clicks), np.log(spend)], axis=1)
    onehot = np.eye(4)[channel]
    x = np.concatenate([feats, onehot], axis=1).astype(np.float32)
    return x, target.astype(np.float32)


class Data(L.LightningDataModule):
    def setup(self, stage=None):
        with np.errstate(all="ignore"):
            x, y = load_table()
        centre = np.median(x[:, :3], axis=0)
        x[:, :3] = x[:, :3] - centre
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        self.train = TensorDataset(x[:5000], y[:5000])
        self.val = TensorDataset(x[5000:], y[5000:])

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=64, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=250)


class Regressor(L.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(7, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def training_step(self, batch, i):
        x, y = batch
        loss = F.smooth_l1_loss(self.net(x).squeeze(-1).float(), y)
        if self.global_step % 40 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        self.log("val_loss", F.smooth_l1_loss(self.net(x).squeeze(-1).float(), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(3)
    trainer = L.Trainer(max_epochs=5, precision="bf16-mixed", accelerator="cpu", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, gradient_clip_val=1.0, num_sanity_val_steps=0)
    model = Regressor()
    trainer.fit(model, datamodule=Data())
    print(f"val_loss {trainer.callback_metrics['val_loss'].item():.4f}")
