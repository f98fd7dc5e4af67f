import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class EnergyModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        self.seen = []

    def training_step(self, batch, i):
        x, y = batch
        energy = (x * 300).pow(2).sum(1, keepdim=True)  # a few million, in FP32
        loss = nn.functional.mse_loss(self.net(x) + energy.log() - 14.9, y)
        self.seen.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.seen) / len(self.seen):.4f}")
        self.seen.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


L.seed_everything(0)
x = torch.randn(1024, 32)
y = x[:, :2].sum(1, keepdim=True)
L.Trainer(
    max_epochs=5, precision="bf16-mixed", accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(EnergyModel(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
