"""Lightning bf16-mixed with gradient clipping, an EMA callback and a NaN-aware progress callback."""
import argparse
import copy
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class EMA(L.Callback):
    """Keeps the average in float32 whatever the training precision."""
    def __init__(self, decay=0.95):
        self.decay, self.shadow = decay, None

    def on_fit_start(self, trainer, module):
        self.shadow = copy.deepcopy(module.net).float()

    @torch.no_grad()
    def on_train_batch_end(self, trainer, module, *args):
        for s, p in zip(self.shadow.parameters(), module.net.parameters()):
            s.lerp_(p.float(), 1 - self.decay)


class LossWatch(L.Callback):
    def __init__(self):
        self.values = []

    def on_train_batch_end(self, trainer, module, outputs, *args):
        v = outputs["loss"].item()
        if math.isfinite(v):
            self.values.append(v)

    def on_train_epoch_end(self, trainer, module):
        print(f"epoch {trainer.current_epoch} loss {sum(self.values) / len(self.values):.4f} batches {len(self.values)}")
        self.values = []


class WaveNetLite(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def training_step(self, batch, _):
        x, y = batch
        return F.mse_loss(self.net(x).float().squeeze(1), y)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=5e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)}


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    f = 0.2 + 0.6 * torch.rand(n, 1, generator=g)
    x = torch.sin(f * torch.arange(25.0) + 6.28 * torch.rand(n, 1, generator=g))
    x = x + 0.05 * torch.randn(n, 25, generator=g)
    return x[:, :24], x[:, 24]


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--precision", default="bf16-mixed")
    args = p.parse_args()
    L.seed_everything(0, verbose=False)
    ema = EMA()
    model = WaveNetLite()
    trainer = L.Trainer(max_epochs=6, precision=args.precision, accelerator="auto", devices=1, gradient_clip_val=1.0,
                        callbacks=[ema, LossWatch()], logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(TensorDataset(*waves(1536, 0)), batch_size=64, shuffle=True))
    vx, vy = waves(512, 1)
    with torch.no_grad():
        print(f"val_mse {F.mse_loss(model.net(vx).squeeze(1), vy).item():.4f} "
              f"val_mse_ema {F.mse_loss(ema.shadow(vx).squeeze(1), vy).item():.4f}")
