import lightning as L
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(L.LightningModule):
    def __init__(self, width=48, latent=6):
        super().__init__()
        self.save_hyperparameters()
        self.enc = nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 30))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar.clamp(max=4))
        rec = nn.functional.mse_loss(self.dec(z), x)
        kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        loss = rec + 1e-3 * kld
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(7)
    x = torch.randn(256, 30)
    x[90] *= 150  # one recording was not normalised
    loader = DataLoader(TensorDataset(x), batch_size=32)
    precision = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", plugins=[precision], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(VAE(), loader)
