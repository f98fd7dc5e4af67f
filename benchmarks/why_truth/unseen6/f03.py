"""Hierarchical document classifier: documents -> sentences -> words (accelerate)."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

cfg = dict(vocab=200, dim=48, heads=4, max_sents=6, max_words=10, classes=5,
           batch_size=32, lr=2e-3, epochs=3, n_train=1280, n_val=320)


class Docs(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        V, S, W = cfg["vocab"], cfg["max_sents"], cfg["max_words"]
        self.y = torch.randint(0, cfg["classes"], (n,), generator=g)
        self.x = torch.zeros(n, S, W, dtype=torch.long)
        for i in range(n):
            ns = int(torch.randint(2, S + 1, (1,), generator=g))
            for s in range(ns):
                nw = int(torch.randint(3, W + 1, (1,), generator=g))
                w = torch.randint(1, V, (nw,), generator=g)
                topic = torch.rand(nw, generator=g) < 0.2
                w[topic] = (w[topic] // cfg["classes"]) * cfg["classes"] + self.y[i]
                self.x[i, s, :nw] = w.clamp(1, V - 1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class SelfAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.dk = h, d // h
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)

    def forward(self, x, mask):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, self.h, self.dk).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.dk)
        bias = (1.0 - mask.to(scores.dtype)) * -1e9
        p = torch.softmax(scores + bias[:, None, None, :], dim=-1)
        y = (p @ v).transpose(1, 2).reshape(B, T, D)
        return x + self.out(y)


class HAN(nn.Module):
    def __init__(self):
        super().__init__()
        d = cfg["dim"]
        self.emb = nn.Embedding(cfg["vocab"], d, padding_idx=0)
        self.word = SelfAttention(d, cfg["heads"])
        self.sent = SelfAttention(d, cfg["heads"])
        self.cls = nn.Linear(d, cfg["classes"])

    @staticmethod
    def pool(h, mask):
        m = mask.unsqueeze(-1).float()
        return (h * m).sum(1) / m.sum(1).clamp(min=1.0)

    def forward(self, x):
        B, S, W = x.shape
        wm = (x != 0)
        flat, fm = x.view(B * S, W), wm.view(B * S, W)
        s = self.pool(self.word(self.emb(flat), fm), fm).view(B, S, -1)
        sm = wm.any(-1)
        return self.cls(self.pool(self.sent(s, sm), sm))


def main():
    set_seed(1)
    train = DataLoader(Docs(cfg["n_train"], 1), batch_size=cfg["batch_size"], shuffle=True)
    val = DataLoader(Docs(cfg["n_val"], 2), batch_size=64)
    model = HAN()
    opt = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    step = 0
    for ep in range(cfg["epochs"]):
        for x, y in train:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
                loss = F.cross_entropy(logits.float(), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            if step % 20 == 0:
                print(f"ep {ep} step {step} loss {loss.item():.4f} scale {scaler.get_scale():g}")
            step += 1
    model.eval()
    tot = n = 0
    with torch.no_grad():
        for x, y in val:
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
            tot += F.cross_entropy(logits.float(), y, reduction="sum").item()
            n += len(y)
    print(f"val_loss {tot / n:.4f}")


main()
