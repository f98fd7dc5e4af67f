"""Metric learning with Lightning: embed noisy points so that same-class pairs are close."""
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 5
DIM = 10


class Points(Dataset):
    def __init__(self, size=768, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.centres = torch.randn(CLASSES, DIM, generator=g) * 2
        self.y = torch.randint(0, CLASSES, (size,), generator=g)
        self.x = self.centres[self.y] + torch.randn(size, DIM, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def distance_matrix(z):
    diff = z.unsqueeze(0) - z.unsqueeze(1)
    return diff.pow(2).sum(-1).sqrt()


class Embedder(L.LightningModule):
    def __init__(self, lr=2e-3, margin=2.0):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(DIM, 48), nn.ReLU(), nn.Linear(48, 8))

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self.net(x)
        dist = distance_matrix(z)
        same = (y[:, None] == y[None, :]).to(dist.dtype)
        pull = (same * dist).sum() / same.sum()
        push = ((1 - same) * F.relu(self.hparams.margin - dist)).sum() / (1 - same).sum()
        loss = pull + push
        if self.global_step % 10 == 0:
            print(f"step {self.global_step} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(1)
    loader = DataLoader(Points(), batch_size=32, shuffle=True)
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        precision="bf16-mixed",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Embedder(), loader)
