"""Causal character LM with fp16 autocast; the scaler starts very high."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
VOCAB, CTX, DIM, HEADS = 8, 24, 32, 4


def corpus(n):
    seq = [1, 2]
    for i in range(n):
        noise = int(torch.rand(1) < 0.05) * int(torch.randint(0, VOCAB, (1,)))
        seq.append((seq[-1] + 3 * seq[-2] + noise) % VOCAB)
        if i % 40 == 0:
            seq[-1] = int(torch.randint(0, VOCAB, (1,)))
    return torch.tensor(seq)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        mask = torch.full((CTX, CTX), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        w = q @ k.mT / (DIM // HEADS) ** 0.5
        w = (w + self.mask[:t, :t].to(w.dtype)).softmax(-1)
        return self.o((w @ v).transpose(1, 2).reshape(b, t, DIM))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.n1, self.n2, self.nf = (nn.LayerNorm(DIM) for _ in range(3))
        self.att = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 96), nn.GELU(), nn.Linear(96, DIM))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, idx):
        x = self.tok(idx) + self.pos.weight[: idx.size(1)]
        x = x + self.att(self.n1(x))
        x = x + self.mlp(self.n2(x))
        return self.head(self.nf(x))


text = corpus(8000)
train, val = text[:7000], text[7000:]


def batch(src, n=24):
    at = torch.randint(0, len(src) - CTX - 1, (n,))
    return torch.stack([src[i:i + CTX] for i in at]), torch.stack([src[i + 1:i + CTX + 1] for i in at])


model = LM()
opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
skipped = 0
for step in range(200):
    x, y = batch(train)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten())
    opt.zero_grad()
    before = scaler.get_scale()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    skipped += scaler.get_scale() < before
    if step % 50 == 49:
        print(f"step {step + 1} loss {loss.item():.4f} norm {norm.item():.3f} skipped {skipped}")

with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    x, y = batch(val, 128)
    acc = (model(x).argmax(-1) == y).float().mean().item()
print(f"val_acc {acc:.4f}")
