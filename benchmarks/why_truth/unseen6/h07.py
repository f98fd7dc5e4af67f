"""Lightning VAE on digits, bf16-mixed; KL warm-up and clipped log-variance."""
import logging
import warnings
import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitVAE(L.LightningModule):
    def __init__(self, z=8, lr=2e-3, warm=100):
        super().__init__()
        self.save_hyperparameters()
        self.enc = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 128), nn.GELU(), nn.Linear(128, 64))

    def terms(self, x, sample=True):
        mu, logvar = self.enc(x).float().chunk(2, -1)
        logvar = logvar.clamp(-12, 8)
        std = (0.5 * logvar).exp()
        z = mu + std * torch.randn_like(std) if sample else mu
        rec = F.binary_cross_entropy_with_logits(self.dec(z).float(), x, reduction="none").sum(1).mean()
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum(1).mean()
        return rec, kl

    def training_step(self, batch, i):
        rec, kl = self.terms(batch[0])
        beta = min(1.0, self.global_step / self.hparams.warm)
        loss = rec + beta * kl
        if self.global_step % 30 == 0:
            print(f"step {self.global_step} rec {rec.item():.3f} kl {kl.item():.3f} beta {beta:.2f}")
        return loss

    def validation_step(self, batch, i):
        rec, kl = self.terms(batch[0], sample=False)
        self.log("val_elbo", rec + kl)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, eps=1e-9)
        sch = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 40))
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sch, "interval": "step"}}


def main():
    L.seed_everything(10)
    x = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    x = x[torch.randperm(len(x))]
    tr = DataLoader(TensorDataset(x[:1500]), batch_size=50, shuffle=True)
    va = DataLoader(TensorDataset(x[1500:]), batch_size=297)
    es = EarlyStopping("val_elbo", patience=6, mode="min", check_finite=True)
    trainer = L.Trainer(max_epochs=12, precision="bf16-mixed", accelerator="cpu", logger=False, callbacks=[es],
                        gradient_clip_val=5.0, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(LitVAE(), tr, va)
    print(f"val_elbo {trainer.callback_metrics['val_elbo'].item():.3f}")


if __name__ == "__main__":
    main()
