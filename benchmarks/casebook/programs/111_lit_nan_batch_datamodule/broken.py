import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from lightning.pytorch.plugins import MixedPrecision


class Weather(L.LightningDataModule):
    def prepare(self):
        raw = torch.randn(800, 6) * torch.tensor([1.0, 10, 100, 1, 5, 0]) + 3
        self.y = raw[:, 0] + raw[:, 1] / 10
        self.x = (raw - raw.mean(0)) / raw.std(0)

    def setup(self, stage):
        torch.manual_seed(0)
        self.prepare()

    def train_dataloader(self):
        return DataLoader(TensorDataset(self.x, self.y), batch_size=40)


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.huber_loss(self.net(x)[:, 0], y)
        if i % 10 == 0:
            print(f"epoch {self.current_epoch} it {i} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-2)


plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
L.Trainer(
    max_epochs=3, accelerator="cpu", plugins=[plugin], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
).fit(Forecaster(), datamodule=Weather())
