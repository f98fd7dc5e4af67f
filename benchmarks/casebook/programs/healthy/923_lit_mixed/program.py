import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        if i % 5 == 0:
            print(f"epoch {self.current_epoch} step {i} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


L.seed_everything(0)
x = torch.randn(640, 10)
ds = torch.utils.data.TensorDataset(x, x[:, :2].sum(1, keepdim=True))
L.Trainer(
    max_epochs=2, accelerator="cpu", gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, plugins=[MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))],
).fit(Lit(), torch.utils.data.DataLoader(ds, batch_size=32))
