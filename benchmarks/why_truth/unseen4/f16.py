"""SimCLR-style pretraining on tabular views with Lightning (half precision)."""
import argparse
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class TwoViews(Dataset):
    def __init__(self, n, dim=32, classes=8):
        g = torch.Generator().manual_seed(0)
        centres = torch.randn(classes, dim, generator=g)
        self.y = torch.randint(0, classes, (n,), generator=g)
        self.x = centres[self.y] + 0.8 * torch.randn(n, dim, generator=g)

    def __len__(self):
        return len(self.x)

    def view(self, x):
        return (x + 0.3 * torch.randn_like(x)) * (torch.rand_like(x) > 0.1)

    def __getitem__(self, i):
        return self.view(self.x[i]), self.view(self.x[i]), self.y[i]


class SimCLR(L.LightningModule):
    def __init__(self, dim=32, out=32, temperature=0.07, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.enc = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, out))
        self.history = []

    def forward(self, x):
        return F.normalize(self.enc(x), dim=-1)

    def nt_xent(self, a, b):
        z = torch.cat([a, b], 0)
        sim = torch.exp(z @ z.T / self.hparams.temperature)
        eye = torch.eye(len(z), dtype=torch.bool, device=z.device)
        denom = sim.masked_fill(eye, 0.0).sum(dim=-1)
        pos = torch.exp((a * b).sum(-1) / self.hparams.temperature)
        pos = torch.cat([pos, pos], 0)
        return -torch.log(pos / denom).mean()

    def training_step(self, batch, _):
        loss = self.nt_xent(self(batch[0]), self(batch[1]))
        self.history.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        h = self.history
        self.history = []
        print(f"epoch {self.current_epoch} nt_xent {sum(h) / len(h):.4f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--precision", default="16-mixed")
    args = p.parse_args()
    L.seed_everything(0, verbose=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kw = {"precision": args.precision}
    if args.precision == "16-mixed":
        kw = {"plugins": [MixedPrecision("16-mixed", device, torch.amp.GradScaler(device, init_scale=1024.0))]}
    ds = TwoViews(512)
    model = SimCLR()
    trainer = L.Trainer(max_epochs=args.epochs, accelerator=device, devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, **kw)
    trainer.fit(model, DataLoader(ds, batch_size=64, shuffle=True, drop_last=True))
    model.eval()
    with torch.no_grad():
        z = model(ds.x)
    nn_idx = (z @ z.T).fill_diagonal_(-2).argmax(1)
    print(f"knn_acc {(ds.y[nn_idx] == ds.y).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
