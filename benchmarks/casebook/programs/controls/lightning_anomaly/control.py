import lightning.pytorch as pl
import torch


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, x):
        zero = (self.net.bias - self.net.bias).sum().sqrt()
        return (self.net(x) - x[:, :1]).square().mean() + 0 * zero

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


pl.seed_everything(0)
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=16))
