"""Lightning manual optimization with its own GradScaler: unscale, clip, step, update, in that order."""
import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class TwoTower(L.LightningModule):
    """User and item towers with separate optimizers."""
    def __init__(self, amp):
        super().__init__()
        self.automatic_optimization = False
        self.amp = amp
        self.user = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
        self.item = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
        self.scaler = torch.amp.GradScaler("cuda" if torch.cuda.is_available() else "cpu", init_scale=2.0 ** 14,
                                           enabled=amp)
        self.seen = []

    def forward(self, u, i):
        with torch.autocast(u.device.type, dtype=torch.float16, enabled=self.amp):
            a, b = self.user(u), self.item(i)
        return (a.float() * b.float()).sum(-1)

    def training_step(self, batch, _):
        u, i, y = batch
        loss = F.binary_cross_entropy_with_logits(self(u, i), y)
        opts = self.optimizers(use_pl_optimizer=False)
        for o in opts:
            o.zero_grad()
        self.scaler.scale(loss).backward()
        for o, tower in zip(opts, (self.user, self.item)):
            self.scaler.unscale_(o)
            nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
            self.scaler.step(o)
        self.scaler.update()
        self.seen.append(loss.item())

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.seen) / len(self.seen):.4f}")
        self.seen.clear()

    def configure_optimizers(self):
        return [torch.optim.Adam(self.user.parameters(), lr=5e-3), torch.optim.SGD(self.item.parameters(), lr=0.3)]


def pairs(n, seed):
    w = torch.Generator().manual_seed(4)
    a, b = torch.randn(12, 4, generator=w), torch.randn(12, 4, generator=w)
    g = torch.Generator().manual_seed(seed)
    u, i = torch.randn(n, 12, generator=g), torch.randn(n, 12, generator=g)
    return u, i, (((u @ a) * (i @ b)).sum(1) > 0).float()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--fp32", action="store_true")
    args = p.parse_args()
    L.seed_everything(0, verbose=False)
    model = TwoTower(not args.fp32)
    trainer = L.Trainer(max_epochs=6, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(TensorDataset(*pairs(3072, 0)), batch_size=64, shuffle=True))
    u, i, y = pairs(1000, 1)
    with torch.no_grad():
        print(f"val_acc {((model(u, i) > 0).float() == y).float().mean().item():.3f}")
