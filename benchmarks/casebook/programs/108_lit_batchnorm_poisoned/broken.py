import torch
import lightning as L
import torch.nn as nn
from lightning.pytorch.plugins import MixedPrecision


class Tabular(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.gain = 40.0
        self.enc = nn.Linear(10, 32)
        self.bn = nn.BatchNorm1d(32)
        self.dec = nn.Linear(32, 1)

    def forward(self, x):
        h = self.enc(x * self.gain)
        return self.dec(torch.relu(self.bn(h))).squeeze(-1)

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        if i % 4 == 0:
            print(f"epoch {self.current_epoch} step {i} train_loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        print(f"val_loss {nn.functional.mse_loss(self(x), y).item():.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-2)


L.seed_everything(2)
x = torch.randn(1024, 10)
y = x[:, 0] - x[:, 1]
x[700] *= 5000  # outlier
train = torch.utils.data.TensorDataset(x, y)
val = torch.utils.data.TensorDataset(x[:256], y[:256])
trainer = L.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, num_sanity_val_steps=0,
    enable_progress_bar=False, enable_model_summary=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))],
)
mk = torch.utils.data.DataLoader
trainer.fit(Tabular(), mk(train, batch_size=64), mk(val, batch_size=256))
