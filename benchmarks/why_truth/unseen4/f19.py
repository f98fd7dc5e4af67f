"""Sigma-VAE (optimal decoder variance) on synthetic spectrogram patches with Lightning."""
import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def patches(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    f = torch.randint(2, 14, (n, 1, 1), generator=g).float()
    drift = (torch.rand(n, 1, 1, generator=g) - 0.5) * 4
    band = torch.arange(16).float().view(1, 16, 1)
    t = torch.linspace(0, 1, 16).view(1, 1, 16)
    spec = torch.exp(-0.5 * (band - f - drift * t) ** 2)
    # decibels above the noise floor
    return (90.0 * spec + 1.5 * torch.randn(n, 16, 16, generator=g)).flatten(1)


class VAE(L.LightningModule):
    def __init__(self, latent=6, beta=1.0, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.enc = nn.Sequential(nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, 96), nn.ReLU(), nn.Linear(96, 256))
        self.log_loss = []

    def forward(self, x):
        mu, logvar = self.enc(x / 20.0).chunk(2, -1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.dec(z) * 20.0, mu, logvar

    def elbo(self, x):
        x = x.to(self.dec[0].weight.device)
        recon, mu, logvar = self(x)
        sse = (recon - x.to(recon.dtype)).square().flatten(1).sum(dim=1)
        rec = 0.5 * 256 * torch.log(sse / 256)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(dim=1)
        return rec.mean() / 256, kl.mean() / 256

    def training_step(self, x, _):
        rec, kl = self.elbo(x)
        loss = rec + self.hparams.beta * kl
        self.log_loss.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        n = len(self.log_loss)
        print(f"epoch {self.current_epoch} elbo {sum(self.log_loss) / n:.3f}")
        self.log_loss.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--fp32", action="store_true")
    p.add_argument("--epochs", type=int, default=5)
    args = p.parse_args()
    L.seed_everything(0, verbose=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plugins = [] if args.fp32 else [MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=64.0))]
    model = VAE()
    trainer = L.Trainer(max_epochs=args.epochs, accelerator=device, devices=1, plugins=plugins, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(patches(768), batch_size=32, shuffle=True))
    with torch.no_grad():
        v = patches(256, seed=1)
        print(f"val_rec {(model(v)[0] - v).square().mean().item():.3f}")


if __name__ == "__main__":
    main()
