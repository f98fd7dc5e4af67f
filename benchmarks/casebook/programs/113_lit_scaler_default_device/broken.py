import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Denoiser(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.seen = []

    def training_step(self, batch, i):
        (clean,) = batch
        noisy = clean + torch.randn_like(clean) * 0.5
        out = self.net(noisy) * 1e-3  # back to volts
        loss = nn.functional.mse_loss(out, clean * 1e-3)
        self.seen.append(loss.item() * 1e6)
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.seen) / len(self.seen):.4f} mV2")
        self.seen.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3, eps=1e-16)


L.seed_everything(0)
t = torch.linspace(0, 6.28, 64)
waves = torch.sin(t * torch.randint(1, 4, (1024, 1)) + torch.rand(1024, 1) * 6.28)
trainer = L.Trainer(
    max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler())],
)
trainer.fit(Denoiser(), DataLoader(TensorDataset(waves), batch_size=64, shuffle=True))
