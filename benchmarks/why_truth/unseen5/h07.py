"""Set classification with pooled attention over ragged sets; Accelerate bf16 + accumulation."""
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(14)
MAXN, D = 10, 6


def sets(n):
    x = torch.randn(n, MAXN, D)
    size = torch.randint(1, MAXN + 1, (n,))
    keep = torch.arange(MAXN)[None] < size[:, None]
    best = x[..., 0].masked_fill(~keep, float("-inf")).argmax(1)
    y = (x[torch.arange(n), best, 1] > 0).long()
    return x, keep, y


class Pool(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(D, h), nn.ReLU(), nn.Linear(h, 1))
        self.val = nn.Sequential(nn.Linear(D, h), nn.ReLU())
        self.out = nn.Linear(h, 2)

    def forward(self, x, keep):
        s = 4 * self.score(x).squeeze(-1)
        s = s.masked_fill(~keep, float("-inf"))
        w = s.softmax(-1).unsqueeze(-1)
        return self.out((w * self.val(x)).sum(1))


def main():
    acc = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2, cpu=True)
    model = Pool()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3)
    loader = DataLoader(TensorDataset(*sets(4000)), batch_size=50, shuffle=True)
    model, opt, loader = acc.prepare(model, opt, loader)
    for epoch in range(8):
        tot = 0.0
        for x, keep, y in loader:
            with acc.accumulate(model):
                loss = nn.functional.cross_entropy(model(x, keep), y)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                opt.zero_grad()
            tot += loss.item()
        print(f"epoch {epoch} loss {tot / len(loader):.4f}")
    x, keep, y = sets(1000)
    with torch.no_grad():
        good = (model(x, keep).argmax(1) == y).float().mean().item()
    print(f"val_acc {good:.4f}")


if __name__ == "__main__":
    main()
