"""Sentiment toy: token classifier with padding mask, FP16 autocast."""
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, VOCAB, MAXLEN = 0, 200, 24


class Reviews(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for i in range(n):
            label = rng.randint(0, 1)
            length = rng.randint(4, MAXLEN)
            lo, hi = (1, 120) if label else (80, VOCAB - 1)
            toks = [rng.randint(lo, hi) for _ in range(length)]
            if i % 71 == 50:
                toks = []  # review that had only stop words
            self.items.append((toks, label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    ids = torch.full((len(batch), MAXLEN), PAD, dtype=torch.long)
    for i, (toks, _) in enumerate(batch):
        ids[i, : len(toks)] = torch.tensor(toks, dtype=torch.long)
    return ids, torch.tensor([y for _, y in batch])


class SelfAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.d = d

    def forward(self, x, pad):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / math.sqrt(self.d)
        scores = scores.masked_fill(pad[:, None, :], float("-inf"))
        return torch.softmax(scores, dim=-1) @ self.v(x)


class Classifier(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.pos = nn.Parameter(torch.zeros(MAXLEN, d))
        self.attn = SelfAttention(d)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        pad = ids == PAD
        h = self.emb(ids) + self.pos
        h = self.norm(h + self.attn(h, pad))
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        pooled = (h * keep).sum(1) / keep.sum(1).clamp(min=1)
        return self.out(pooled)


if __name__ == "__main__":
    torch.manual_seed(1)
    train = DataLoader(Reviews(800, 0), batch_size=16, shuffle=True, collate_fn=collate)
    net = Classifier()
    optim = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    crit = nn.CrossEntropyLoss()
    step = 0
    for epoch in range(4):
        for ids, y in train:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = crit(net(ids), y)
            optim.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optim)
            scaler.update()
            if step % 10 == 0:
                print(f"{epoch}:{step} loss={loss.item():.4f} scale={scaler.get_scale()}")
            step += 1
