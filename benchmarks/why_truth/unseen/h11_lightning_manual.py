"""Lightning, manual optimisation, FP16 autocast with a GradScaler of its own."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Rings(Dataset):
    def __init__(self, n=768):
        g = torch.Generator().manual_seed(0)
        self.y = torch.randint(0, 3, (n,), generator=g)
        r = 1.0 + self.y + 0.15 * torch.randn(n, generator=g)
        a = torch.rand(n, generator=g) * 6.283
        self.x = torch.stack([r * a.cos(), r * a.sin()], -1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        self.automatic_optimization = False
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24)
        self.losses = []

    def training_step(self, batch, idx):
        x, y = batch
        opt = self.optimizers().optimizer
        with torch.autocast("cpu", dtype=torch.float16):
            logits = self.net(x)
        loss = F.cross_entropy(logits.float(), y)
        opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.scaler.step(opt)
        self.scaler.update()
        self.losses.append(loss.item())

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} loss {sum(self.losses) / len(self.losses):.4f} "
              f"scale {self.scaler.get_scale():g}")
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main():
    L.seed_everything(0)
    L.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
              enable_progress_bar=False, enable_model_summary=False).fit(
        Module(), DataLoader(Rings(), batch_size=32, shuffle=True))


if __name__ == "__main__":
    main()
