import lightning as L
import torch
from torch import nn
from lightning.pytorch.plugins import MixedPrecision


class AE(L.LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.automatic_optimization = False
        self.lr = lr
        self.encoder = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 30))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        opt = self.optimizers()
        opt.zero_grad()
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.manual_backward(loss)
        opt.step()
        if batch_idx % 5 == 0:
            print("epoch", self.current_epoch, "rec loss", loss.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


L.seed_everything(0)
basis = torch.randn(4, 30)
x = torch.randn(640, 4) @ basis / 2
amp = MixedPrecision("16-mixed", device="cpu", scaler=torch.amp.GradScaler("cpu"))
trainer = L.Trainer(
    max_epochs=4, plugins=[amp], accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False,
)
trainer.fit(AE(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=32))
