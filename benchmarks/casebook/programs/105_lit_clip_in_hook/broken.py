import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lightning as L
from lightning.pytorch.plugins import MixedPrecision


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.seen.append(loss.item())
        return loss

    def on_after_backward(self):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.seen) / len(self.seen):.4f}")
        self.seen.clear()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


L.seed_everything(5)
y = torch.randint(0, 4, (1024,))
x = torch.randn(1024, 8, 8)
x[torch.arange(1024), y] += 1.0
trainer = L.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False,
    plugins=MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu")),
)
trainer.fit(Digits(), DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
