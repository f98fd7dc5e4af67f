"""Sensor forecasting with a GRU in Lightning; bf16 autocast inside the module."""
import lightning as L
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

L.seed_everything(19, verbose=False)
WINDOW, CHANNELS = 24, 3


def sensor_log(n, rng):
    t = np.arange(n)
    x = np.stack([np.sin(2 * np.pi * t / p + k) for k, p in enumerate((11, 17, 29))], 1)
    x += 0.1 * rng.normal(size=x.shape)
    x[:, 1] += 0.4 * np.roll(x[:, 0], 2)
    frozen = n * 2 // 3
    x[frozen:frozen + 40, 2] = x[frozen, 2]
    return torch.tensor(20 + 5 * x, dtype=torch.float32)


class Windows(Dataset):
    def __init__(self, series):
        self.series = series

    def __len__(self):
        return len(self.series) - WINDOW - 1

    def __getitem__(self, i):
        w = self.series[i:i + WINDOW]
        mu, sd = w.mean(0), w.std(0)
        target = (self.series[i + WINDOW, 0] - mu[0]) / sd[0]
        return (w - mu) / sd, target


class Forecaster(L.LightningModule):
    def __init__(self, hidden=32, lr=5e-3):
        super().__init__()
        self.rnn = nn.GRU(CHANNELS, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        self.lr = lr

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h, _ = self.rnn(x)
            out = self.head(h[:, -1])
        return out.float().squeeze(-1)

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.smooth_l1_loss(self(x), y)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.trainer.callback_metrics.get('loss', float('nan'))}")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("loss", outputs["loss"])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    rng = np.random.default_rng(19)
    log = sensor_log(2000, rng)
    val = sensor_log(500, rng)[:300]
    model = Forecaster()
    trainer = L.Trainer(max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False,
                        gradient_clip_val=1.0)
    trainer.fit(model, DataLoader(Windows(log), batch_size=64, shuffle=True))
    model.eval()
    x, y = next(iter(DataLoader(Windows(val), batch_size=1000)))
    with torch.no_grad():
        mae = (model(x) - y).abs().mean().item()
    print(f"val_mae {mae:.4f}")


if __name__ == "__main__":
    main()
