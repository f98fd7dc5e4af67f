import lightning as L
import torch
import torch.nn as nn
from lightning.pytorch.plugins import MixedPrecision


class PhysicsNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.f = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        x, y = batch
        pred = self.f(x)
        loss = (pred.float() - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if batch_idx % 10 == 0:
            print(f"batch {batch_idx} loss {loss.item():.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.f.parameters(), lr=0.02)


def main():
    L.seed_everything(0, verbose=False)
    x = torch.randn(256 * 60, 3)
    y = torch.sign(x.sum(1, keepdim=True))
    ds = torch.utils.data.TensorDataset(x, y)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, plugins=[plugin], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(PhysicsNet(), torch.utils.data.DataLoader(ds, batch_size=256))


if __name__ == "__main__":
    main()
