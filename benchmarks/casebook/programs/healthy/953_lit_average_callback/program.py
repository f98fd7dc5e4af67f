import copy

import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Average(L.Callback):
    def on_fit_start(self, trainer, module):
        self.shadow = copy.deepcopy(module.net).requires_grad_(False)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), module.net.parameters()):
                s.mul_(0.95).add_(p, alpha=0.05)

    def on_train_epoch_end(self, trainer, module):
        x = torch.linspace(-2, 2, 200)[:, None]
        with torch.no_grad():
            err = nn.functional.mse_loss(self.shadow(x), (2 * x).sin())
        print(f"epoch {trainer.current_epoch} average loss {err.item():.4f}")


class Sine(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch, i):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=4e-3)


L.seed_everything(0)
x = torch.rand(2048, 1) * 4 - 2
L.Trainer(
    max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    callbacks=[Average()], plugins=MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu")),
).fit(Sine(), DataLoader(TensorDataset(x, (2 * x).sin()), batch_size=64, shuffle=True))
