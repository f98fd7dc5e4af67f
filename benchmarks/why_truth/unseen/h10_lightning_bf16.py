"""Lightning with bf16-mixed: autoencoder, validation, warm-up."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class AutoEncoder(L.LightningModule):
    def __init__(self, lr=4e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 40))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, idx):
        (x,) = batch
        loss = F.mse_loss(self(x).float(), x)
        self.log("train_loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, idx):
        (x,) = batch
        self.log("val_loss", F.mse_loss(self(x).float(), x))

    def on_validation_epoch_end(self):
        m = self.trainer.callback_metrics
        if not self.trainer.sanity_checking:
            print(f"epoch {self.current_epoch} val {float(m['val_loss']):.4f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": warm, "interval": "step"}}


def manifold(n, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 4, generator=g)
    w = torch.randn(4, 40, generator=torch.Generator().manual_seed(0))
    return TensorDataset(torch.sin(z @ w / 2))


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(max_epochs=5, accelerator="cpu", precision="bf16-mixed", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        gradient_clip_val=0.5, accumulate_grad_batches=2)
    trainer.fit(AutoEncoder(), DataLoader(manifold(1024, 1), batch_size=16, shuffle=True),
                DataLoader(manifold(256, 2), batch_size=64))
