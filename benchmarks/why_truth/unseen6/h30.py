"""Lightning, bf16-mixed, frozen random-feature backbone, accumulate_grad_batches that does not divide the epoch."""
import logging
import os
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
PRECISION = "32-true" if os.environ.get("FP32") == "1" else "bf16-mixed"


class FrozenFeatures(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)
        nn.init.normal_(self.lin.weight, std=0.7)
        self.requires_grad_(False)

    def forward(self, x):
        return torch.cos(self.lin(x).float())


class RFClassifier(L.LightningModule):
    def __init__(self, d=6, feats=256, classes=3):
        super().__init__()
        self.backbone = FrozenFeatures(d, feats)
        self.never_used = nn.Parameter(torch.zeros(4), requires_grad=False)   # reserved for a later ablation
        self.head = nn.Sequential(nn.Linear(feats, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, _):
        x, y = batch
        loss = F.cross_entropy(self(x).float(), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        out = self(x).float()
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("val_acc", (out.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        trainable = [p for p in self.parameters() if p.requires_grad]
        opt = torch.optim.AdamW(trainable, lr=6e-3, weight_decay=0.0)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)}


class Printer(Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch % 3 == 0:
            m = trainer.callback_metrics
            print(f"epoch {trainer.current_epoch} train {m['train_loss']:.4f} val {m['val_loss']:.4f}")


def dataset(n):
    x = torch.randn(n, 6)
    s = x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2])
    y = (s > -0.5).long() + (s > 0.5).long()
    return TensorDataset(x, y)


def main():
    L.seed_everything(8, verbose=False)
    tr, va = dataset(2600), dataset(1500)
    model = RFClassifier()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, precision=PRECISION, max_epochs=10,
        accumulate_grad_batches=3, gradient_clip_val=1.0,
        callbacks=[EarlyStopping("val_loss", patience=4), Printer()],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, DataLoader(tr, 40, shuffle=True), DataLoader(va, 500))
    res = trainer.validate(model, DataLoader(va, 500), verbose=False)[0]
    print(f"final val_acc {res['val_acc']:.4f}")


if __name__ == "__main__":
    main()
