import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitRegressor(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        if batch_idx % 4 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} train_loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, eps=1e-4)


if __name__ == "__main__":
    L.seed_everything(3)
    x = torch.randn(512, 12).relu()
    x[:, :2] = 0
    y = x.mean(1, keepdim=True)
    trainer = L.Trainer(
        max_epochs=2, precision="16-true", accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(LitRegressor(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
