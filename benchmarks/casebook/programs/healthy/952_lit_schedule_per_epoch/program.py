import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Contrastive(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.b = nn.Linear(16, 32)
        self.seen = []

    def training_step(self, batch, i):
        za, zb = self.a(batch[0]).float(), self.b(batch[1]).float()
        za = za / (za.norm(dim=1, keepdim=True) + 1e-8)
        zb = zb / (zb.norm(dim=1, keepdim=True) + 1e-8)
        logits = (za[:, None] * zb[None]).sum(-1) / 0.07
        loss = nn.functional.cross_entropy(logits, torch.arange(len(za)))
        self.seen.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.seen) / len(self.seen):.4f}")
        self.seen.clear()

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=1e-2)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "epoch"}}


L.seed_everything(3)
x = torch.randn(1024, 16)
views = x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)
L.Trainer(
    max_epochs=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    plugins=MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu")),
).fit(Contrastive(), DataLoader(TensorDataset(*views), batch_size=64, shuffle=True))
