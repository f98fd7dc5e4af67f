"""Pedestrian box regression with Lightning: objectness plus an L1 term over the positive anchors."""
import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Frames(Dataset):
    """Eight anchors per frame, 12 features each; some frames of the drive are empty."""
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        obj = (torch.rand(n, 8, generator=g) < 0.4).float()
        obj[n // 2: n // 2 + 40] = 0.0  # tunnel
        box = torch.rand(n, 8, 4, generator=g)
        feat = torch.randn(n, 8, 12, generator=g) * 0.3
        feat[..., 0] += 2 * obj - 1
        feat[..., 1:5] += box * obj[..., None]
        self.items = feat, obj, box

    def __len__(self):
        return len(self.items[0])

    def __getitem__(self, i):
        return tuple(t[i] for t in self.items)


class BoxHead(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.obj = nn.Linear(48, 1)
        self.box = nn.Linear(48, 4)
        self.seen = []

    def losses(self, batch):
        feat, obj, box = batch
        h = self.trunk(feat)
        logit, pred = self.obj(h).squeeze(-1).float(), self.box(h).float()
        cls = F.binary_cross_entropy_with_logits(logit, obj)
        l1 = (pred - box).abs().sum(-1)
        reg = (l1 * obj).sum() / obj.sum()
        return cls, reg

    def training_step(self, batch, idx):
        cls, reg = self.losses(batch)
        loss = cls + reg
        self.seen.append(loss.item())
        return loss

    def validation_step(self, batch, idx):
        cls, reg = self.losses(batch)
        self.log("val_reg", reg)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {self.seen[-1]:.4f} val_reg {self.trainer.callback_metrics['val_reg']:.4f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [opt], [torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)]


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--precision", default="bf16-mixed")
    p.add_argument("--lr", type=float, default=5e-3)
    args = p.parse_args()
    L.seed_everything(1, verbose=False)
    val = Frames(64, 2)
    val.items = tuple(t[:32] for t in val.items)
    # frames stay in recording order
    train = DataLoader(Frames(512, 0), batch_size=16, shuffle=False)
    trainer = L.Trainer(max_epochs=4, accelerator="auto", devices=1, precision=args.precision, gradient_clip_val=1.0,
                        logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(BoxHead(args.lr), train, DataLoader(val, batch_size=32))
