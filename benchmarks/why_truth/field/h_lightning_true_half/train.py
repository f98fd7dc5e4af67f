"""Denoising autoencoder, everything in half to save memory."""
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(L.LightningModule):
    def __init__(self, dim=64, code=8, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        noisy = x + 0.1 * torch.randn_like(x)
        loss = nn.functional.mse_loss(self(noisy), x)
        self.log("train_loss", loss, prog_bar=False)
        print(f"batch {batch_idx}: {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    L.seed_everything(5)
    data = torch.rand(128, 64)
    loader = DataLoader(TensorDataset(data), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        precision="16-true",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Autoencoder(), loader)


if __name__ == "__main__":
    main()
