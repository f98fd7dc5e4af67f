import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    """A frozen VAE encoder; its log-variances reach 30, as those of some released ones do."""

    def __init__(self):
        super().__init__()
        self.to_moments = nn.Linear(16, 8)
        self.to_moments.weight.data[4:] *= 9

    def forward(self, x):
        mean, logvar = self.to_moments(x).chunk(2, -1)
        std = torch.exp(0.5 * logvar)
        return mean + 1e-3 * std * torch.randn_like(std)


class LatentModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.vae = Encoder().requires_grad_(False)
        self.net = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 4))
        self.scale = None

    def training_step(self, batch, i):
        z = self.vae(batch[0])
        if self.scale is None:  # unit variance, measured on the first batch
            self.scale = 1.0 / z.float().std()
        z = (z * self.scale).clamp(-4, 4)
        noise = torch.randn_like(z)
        t = torch.rand(len(z), 1)
        loss = nn.functional.mse_loss(self.net(torch.cat([z * (1 - t) + noise * t, t], 1)), noise)
        if i % 8 == 0:
            print(f"epoch {self.current_epoch} step {i} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=5e-3)


L.seed_everything(1)
images = torch.randn(2048, 16) * 2
L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))],
).fit(LatentModel(), DataLoader(TensorDataset(images), batch_size=64))
