"""Listwise document ranking with padded lists, Lightning bf16-mixed."""
import logging
import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
DOCS, FEAT = 20, 18


def queries(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(FEAT, generator=torch.Generator().manual_seed(3))
    x = torch.randn(n, DOCS, FEAT, generator=g)
    x[..., 0] = torch.exp(3 * x[..., 0].abs())
    count = torch.randint(5, DOCS + 1, (n, 1), generator=g)
    real = torch.arange(DOCS)[None] < count
    rel = x[..., 1:] @ w[1:] + 0.8 * torch.log(x[..., 0])
    rel = rel + 0.3 * torch.randn(n, DOCS, generator=g)
    x = torch.where(real[..., None], x, torch.zeros(()))
    return TensorDataset(x, real, rel)


class ListRanker(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEAT, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        clicks = torch.log1p(x[..., :1])
        return self.net(torch.cat([clicks, x[..., 1:]], -1)).squeeze(-1)

    def training_step(self, batch, _):
        x, real, rel = batch
        s = self(x).float().masked_fill(~real, -1e9)
        target = torch.softmax(rel.masked_fill(~real, float("-inf")), dim=1)
        return -(target * F.log_softmax(s, dim=1)).sum(1).mean()

    def validation_step(self, batch, _):
        x, real, rel = batch
        top = self(x).float().masked_fill(~real, float("-inf")).argmax(1)
        best = rel.masked_fill(~real, float("-inf")).argmax(1)
        self.log("val_p1", (top == best).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def main():
    pl.seed_everything(15, verbose=False)
    trainer = pl.Trainer(max_epochs=5, precision="bf16-mixed", accelerator="cpu", logger=False,
                         enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False, accumulate_grad_batches=2,
                         gradient_clip_val=1.0)
    model = ListRanker()
    trainer.fit(model, DataLoader(queries(4000, 1), batch_size=64, shuffle=True),
                DataLoader(queries(800, 2), batch_size=400))
    print(f"val_p1 {trainer.callback_metrics['val_p1'].item():.4f}")


if __name__ == "__main__":
    main()
