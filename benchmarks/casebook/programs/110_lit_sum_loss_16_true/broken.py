import torch
import torch.nn as nn
import lightning.pytorch as pl


class BetaVAE(pl.LightningModule):
    def __init__(self, d=784, z=8):
        super().__init__()
        self.enc = nn.Linear(d, 2 * z)
        self.dec = nn.Linear(z, d)

    def training_step(self, x, idx):
        mu, logvar = self.enc(x).chunk(2, -1)
        out = self.dec(mu + torch.randn_like(mu) * (0.5 * logvar).exp())
        rec = (out - x).abs().sum()
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()
        loss = (rec + kl) / len(x)
        if idx % 4 == 0:
            print("epoch %d step %d loss %.3f" % (self.current_epoch, idx, loss.item()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=2e-5)


def main():
    pl.seed_everything(4)
    x = torch.rand(1024, 784) * 3
    trainer = pl.Trainer(
        max_epochs=3, precision="16-true", accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(BetaVAE(), torch.utils.data.DataLoader(x, batch_size=128, shuffle=True))


if __name__ == "__main__":
    main()
