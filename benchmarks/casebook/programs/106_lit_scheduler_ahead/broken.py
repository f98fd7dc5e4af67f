import lightning as L
import torch
from torch import nn
from lightning.pytorch.plugins import MixedPrecision


class Lit(L.LightningModule):
    def __init__(self, total):
        super().__init__()
        self.total = total
        self.net = nn.Sequential(nn.Linear(20, 100), nn.GELU(), nn.Linear(100, 1))

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        if i % 8 == 0:
            lr = self.lr_schedulers().get_last_lr()[0]
            print(f"step {i} loss {loss.item():.4f} lr {lr:.5f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-2)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.total)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(0)
    x = torch.randn(64 * 56, 20)
    y = x @ torch.randn(20, 1) / 4
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    amp = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    model = Lit(total=56)
    L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, plugins=[MixedPrecision("16-mixed", "cpu", scaler=amp)],
    ).fit(model, loader)
    with torch.no_grad():
        print("final loss", nn.functional.mse_loss(model.net(x), y).item())
