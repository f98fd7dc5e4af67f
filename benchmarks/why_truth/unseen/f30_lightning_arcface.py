"""Lightning: speaker verification with an additive angular margin (ArcFace)."""
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class ArcMargin(nn.Module):
    def __init__(self, dim, classes, s=16.0, m=0.2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, dim))
        self.s, self.m = s, m

    def forward(self, emb, label):
        cos = F.normalize(emb.float(), dim=-1) @ F.normalize(self.weight, dim=-1).t()
        theta = torch.acos(cos.clamp(-1.0, 1.0))
        hot = F.one_hot(label, cos.shape[1]).to(cos.dtype)
        return torch.cos(theta + self.m * hot).float() * self.s


class SpeakerNet(L.LightningModule):
    def __init__(self, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 3))
        self.margin = ArcMargin(3, 6)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.automatic_optimization = False

    def training_step(self, batch, _):
        x, y = batch
        opt = self.optimizers().optimizer
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.margin(self.encoder(x), y)
        loss = F.cross_entropy(logits, y)
        opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(opt)
        self.scaler.update()
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen % 20 == 1:
            print(f"step {self.seen} loss {loss.item():.4f} scale {self.scaler.get_scale():g}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def speakers(n=768):
    g = torch.Generator().manual_seed(6)
    y = torch.randint(0, 6, (n,), generator=g)
    centers = torch.randn(6, 30, generator=g)
    return TensorDataset(centers[y] + 0.3 * torch.randn(n, 30, generator=g), y)


def main():
    L.seed_everything(2)
    trainer = L.Trainer(max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(SpeakerNet(), DataLoader(speakers(), batch_size=32, shuffle=True))
    print("angle scale", math.pi)


if __name__ == "__main__":
    main()
