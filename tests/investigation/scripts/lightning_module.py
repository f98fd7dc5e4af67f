"""Lightning: an exponential in training_step leaves the range of FP16, at batch 6."""

import lightning as L
import torch
from torch import nn


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def training_step(self, batch, index):
        x, y = batch
        out = self.net(x) * (1 if index < 6 else 60)
        weight = torch.exp(out.half().abs())  # culprit
        loss = nn.functional.cross_entropy(out, y) * (weight / weight.max()).float().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(0, 4, (160,)))
    trainer = L.Trainer(max_epochs=1, precision="bf16-mixed", accelerator="cpu", log_every_n_steps=1)
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8))
