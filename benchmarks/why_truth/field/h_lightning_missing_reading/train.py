import os
import tempfile

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CSV = os.path.join(tempfile.mkdtemp(), "weather.csv")


def export_station():
    """Stand-in for the download of the station's log."""
    rng = np.random.default_rng(0)
    with open(CSV, "w") as f:
        f.write("temp,humidity,wind,pressure\n")
        for hour in range(400):
            t = 15 + 8 * np.sin(hour / 24 * 6.28) + rng.normal()
            h = 60 - 1.5 * (t - 15) + rng.normal()
            hum = "" if hour == 281 else f"{h:.2f}"
            f.write(f"{t:.2f},{hum},{rng.gamma(2.0, 2.0):.2f},{1013 + rng.normal():.2f}\n")


class Weather(Dataset):
    scale = np.array([10.0, 50.0, 5.0, 1000.0], dtype=np.float32)

    def __init__(self, path, history=6):
        table = np.genfromtxt(path, delimiter=",", skip_header=1, dtype=np.float32)
        self.table = table / self.scale
        self.history = history

    def __len__(self):
        return len(self.table) - self.history

    def __getitem__(self, i):
        past = torch.from_numpy(self.table[i : i + self.history]).flatten()
        return past, torch.tensor(self.table[i + self.history, 0])


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 32), nn.SiLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self.net(x).squeeze(1), y)
        self.log("loss", loss)
        if batch_idx % 5 == 0:
            print("batch", batch_idx, "loss", round(loss.item(), 5))
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=2e-3)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)]


if __name__ == "__main__":
    L.seed_everything(1)
    export_station()
    loader = DataLoader(Weather(CSV), batch_size=8)
    trainer = L.Trainer(accelerator="cpu", max_epochs=2, logger=False, gradient_clip_val=1.0,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Forecaster(), loader)
