import torch
import lightning as L
from torch.nn import functional as F
from lightning.pytorch.plugins import MixedPrecision

TRAINER_ARGS = dict(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    detect_anomaly=True,
)


class Gate(L.LightningModule):
    def __init__(self, d=24):
        super().__init__()
        self.a = torch.nn.Linear(d, 64)
        self.b = torch.nn.Linear(d, 64)
        self.c = torch.nn.Linear(64, 3)
        self.hist = []

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self.c(F.silu(self.a(x)) * self.b(x)), y)
        self.hist.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: loss {sum(self.hist[-10:]) / 10:.4f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 3e-3)


L.seed_everything(11)
y = torch.randint(0, 3, (640,))
x = torch.randn(640, 24) + y[:, None]
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**33)
trainer = L.Trainer(**TRAINER_ARGS, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)])
trainer.fit(Gate(), dl)
