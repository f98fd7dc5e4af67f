"""Vibration fault classifier with batch norm on raw counts. Deploys the compact checkpoint after training."""
import argparse
import logging
import os
import tempfile
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def vibration(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    t = torch.arange(32).float()
    base = torch.sin(0.4 * t[None] + 6.28 * torch.rand(n, 1, generator=g))
    fault = torch.sin(torch.tensor([0.0, 1.1, 2.0])[y][:, None] * t)
    x = base + 0.8 * fault + 0.3 * torch.randn(n, 32, generator=g)
    return x * 2000.0, y  # int16 counts


class Classifier(L.LightningModule):
    def __init__(self, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.bn = nn.BatchNorm1d(32)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x):
        return self.net(self.bn(x))

    def training_step(self, batch, _):
        return F.cross_entropy(self(batch[0]).float(), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class CompactCheckpoint(L.Callback):
    """Stores weights at half the size at the end of training."""
    def __init__(self, path):
        self.path = path

    def on_fit_end(self, trainer, module):
        state = {k: v.half() if v.is_floating_point() else v for k, v in module.state_dict().items()}
        torch.save(state, self.path)


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(-1) == y).float().mean().item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--precision", default="bf16-mixed")
    args = p.parse_args()
    L.seed_everything(0, verbose=False)
    path = os.path.join(tempfile.mkdtemp(), "compact.pt")
    vx, vy = vibration(600, 1)
    model = Classifier()
    trainer = L.Trainer(max_epochs=args.epochs, precision=args.precision, accelerator="auto", devices=1, logger=False,
                        callbacks=[CompactCheckpoint(path)], enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(model, DataLoader(TensorDataset(*vibration(1024, 0)), batch_size=32, shuffle=True))
    print(f"val_acc at end of training {accuracy(model, vx, vy):.3f}")
    deployed = Classifier()
    deployed.load_state_dict(torch.load(path, weights_only=True))
    print(f"val_acc deployed {accuracy(deployed, vx, vy):.3f}")


if __name__ == "__main__":
    main()
