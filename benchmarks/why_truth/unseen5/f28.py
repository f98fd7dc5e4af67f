"""Next-item ranking (BPR) with Lightning in true half precision."""
import logging
import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
USERS, ITEMS, DIM = 150, 400, 16


class Pairs(Dataset):
    def __init__(self, n, seed):
        base = torch.Generator().manual_seed(5)
        p = torch.randn(USERS, 4, generator=base)
        q = torch.randn(ITEMS, 4, generator=base)
        bias = torch.randn(ITEMS, generator=base)
        g = torch.Generator().manual_seed(seed)
        self.u = torch.randint(USERS, (n,), generator=g)
        a = torch.randint(ITEMS, (n,), generator=g)
        b = torch.randint(ITEMS, (n,), generator=g)
        s = (p[self.u] * (q[a] - q[b])).sum(1) + 3 * (bias[a] - bias[b])
        self.pos, self.neg = torch.where(s > 0, a, b), torch.where(s > 0, b, a)

    def __len__(self):
        return len(self.u)

    def __getitem__(self, i):
        return self.u[i], self.pos[i], self.neg[i]

    def __getitems__(self, idx):
        i = torch.as_tensor(idx)
        return [(self.u[i], self.pos[i], self.neg[i])]


class BPR(pl.LightningModule):
    def __init__(self, lr=1e-2):
        super().__init__()
        self.lr = lr
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.bias = nn.Embedding(ITEMS, 1)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)
        nn.init.zeros_(self.bias.weight)

    def score(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.bias(i).squeeze(-1)

    def training_step(self, batch, _):
        u, pos, neg = batch
        diff = self.score(u, pos) - self.score(u, neg)
        return -F.logsigmoid(diff.float()).mean()

    def validation_step(self, batch, _):
        u, pos, neg = batch
        gap = self.score(u, pos) - self.score(u, neg)
        self.log("val_auc", (gap > 0).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    pl.seed_everything(28, verbose=False)
    first = lambda chunk: chunk[0]
    train = DataLoader(Pairs(20000, 1), batch_size=256, shuffle=True, collate_fn=first)
    val = DataLoader(Pairs(4000, 2), batch_size=1000, collate_fn=first)
    trainer = pl.Trainer(max_epochs=4, precision="16-true", accelerator="cpu", logger=False,
                         enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False)
    model = BPR()
    trainer.fit(model, train, val)
    print("weights finite:", bool(torch.isfinite(model.item.weight).all()))
    print(f"val_auc {trainer.callback_metrics['val_auc'].item():.4f}")


if __name__ == "__main__":
    main()
