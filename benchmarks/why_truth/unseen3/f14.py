"""Next-item recommendation: attention over the click history, BF16 autocast."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ITEMS, HIST = 120, 12
PAD = 0


def sessions(n, seed):
    rng = np.random.default_rng(seed)
    hist = np.zeros((n, HIST), dtype=np.int64)
    target = np.zeros(n, dtype=np.int64)
    genre = (np.arange(N_ITEMS) * 7) % 10
    pools = [np.where(genre == g)[0] + 1 for g in range(10)]
    for i in range(n):
        g = rng.integers(10)
        length = min(HIST, int(rng.geometric(0.18)))
        if rng.random() < 0.0025:
            length = 0
        picks = rng.choice(pools[g], length)
        hist[i, :length] = picks
        target[i] = rng.choice(pools[g]) if length else rng.integers(1, N_ITEMS + 1)
    return torch.from_numpy(hist), torch.from_numpy(target)


class AttentivePool(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.key = nn.Linear(d, d)
        self.query = nn.Parameter(torch.randn(d) * 0.1)

    def forward(self, h, valid):
        score = torch.tanh(self.key(h)) @ self.query
        score = score.masked_fill(~valid, float("-inf"))
        w = torch.softmax(score, dim=-1)
        return (w.unsqueeze(-1) * h).sum(dim=1)


class Recommender(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.item = nn.Embedding(N_ITEMS + 1, d, padding_idx=PAD)
        self.pool = AttentivePool(d)
        self.tower = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.bias = nn.Parameter(torch.zeros(N_ITEMS + 1))

    def forward(self, hist):
        h = self.item(hist)
        user = self.tower(self.pool(h, hist != PAD))
        return user @ self.item.weight.t() + self.bias


@torch.no_grad()
def recall_at(model, hist, target, k=10):
    keep = (hist != PAD).any(dim=1)
    top = model(hist[keep]).float().topk(k, dim=-1).indices
    return (top == target[keep, None]).any(-1).float().mean().item()


def main():
    torch.manual_seed(17)
    htr, ttr = sessions(3000, 0)
    hva, tva = sessions(500, 1)
    model = Recommender()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(3)
    batch, step = 32, 0
    for epoch in range(3):
        order = torch.randperm(len(htr), generator=gen)
        for i in range(0, len(order) - batch + 1, batch):
            idx = order[i:i + batch]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(htr[idx])
            loss = F.cross_entropy(logits.float(), ttr[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
    print(f"final recall@10 {recall_at(model, hva, tva):.4f}")


if __name__ == "__main__":
    main()
