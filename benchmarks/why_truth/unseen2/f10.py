"""Lightning regression with an exponential moving average of the weights used for validation."""
import copy

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 12


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=g)
    w = torch.linspace(-1, 1, FEATURES)
    y = (x @ w + 0.5 * torch.cos(2 * x[:, 0])).unsqueeze(1)
    return TensorDataset(x, y)


class WeightAverage:
    def __init__(self, module, decay):
        self.decay = decay
        self.module = copy.deepcopy(module).to(torch.bfloat16)
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, source):
        for mine, new in zip(self.module.parameters(), source.parameters()):
            mine.mul_(self.decay).add_(new.to(mine.dtype), alpha=1 - self.decay)


class Regressor(L.LightningModule):
    def __init__(self, lr=5e-3, decay=0.99):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(FEATURES, 64), nn.SiLU(), nn.Linear(64, 1))
        self.average = WeightAverage(self.net, decay)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x).float(), y)
        if self.global_step % 20 == 0:
            print(f"step {self.global_step:4d} train loss {loss.item():.4f}")
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.average.update(self.net)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.average.module(x).float(), y)
        self.log("val_loss", loss, prog_bar=False)

    def on_validation_epoch_end(self):
        print(f"epoch {self.current_epoch} val loss {self.trainer.callback_metrics['val_loss'].item():.4f}")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=10, accelerator="cpu", precision="bf16-mixed", logger=False, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Regressor(), DataLoader(make_set(640, 1), batch_size=32, shuffle=True), DataLoader(make_set(128, 2), batch_size=128))
