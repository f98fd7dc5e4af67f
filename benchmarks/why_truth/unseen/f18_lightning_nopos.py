"""Lightning: dense detector on 1-D signals; regression only on positive anchors."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Peaks(Dataset):
    """A signal of 64 samples, with up to three peaks; 16 anchors."""

    def __init__(self, n=360, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            k = int(torch.randint(1, 4, (1,), generator=g))
            if i >= 300 and i % 8 < 6:
                k = 0
            x = 0.1 * torch.randn(64, generator=g)
            obj, off = torch.zeros(16), torch.zeros(16)
            for p in torch.randperm(16, generator=g)[:k].tolist():
                o = float(torch.rand(1, generator=g))
                obj[p], off[p] = 1.0, o
                x += 2 * torch.exp(-((torch.arange(64) - (4 * p + 4 * o)) ** 2) / 2)
            self.items.append((x, obj, off))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Detector(L.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2, stride=4), nn.ReLU())
        self.obj = nn.Conv1d(16, 1, 3, padding=1)
        self.off = nn.Conv1d(16, 1, 3, padding=1)
        self.log_var = nn.Parameter(torch.zeros(2))  # Kendall et al., learnt task weights

    def forward(self, x):
        h = self.net(x[:, None])
        return self.obj(h)[:, 0], self.off(h)[:, 0]

    def training_step(self, batch, batch_idx):
        x, obj, off = batch
        p_obj, p_off = self(x)
        loss_obj = F.binary_cross_entropy_with_logits(p_obj.float(), obj)
        pos = obj > 0
        loss_off = F.smooth_l1_loss(p_off[pos].float(), off[pos])
        tasks = torch.stack([loss_obj, loss_off])
        loss = (torch.exp(-self.log_var) * tasks + self.log_var).sum()
        if batch_idx % 20 == 0:
            print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)}


if __name__ == "__main__":
    L.seed_everything(0)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", precision="bf16-mixed", logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        gradient_clip_val=1.0)
    trainer.fit(Detector(), DataLoader(Peaks(), batch_size=4, shuffle=False))
