"""Causal language model on padded sequences; masks use the smallest finite number of the dtype."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
VOCAB, LENGTH, DIM = 20, 12, 32
STEPS = 140


def batch(n):
    start = torch.randint(1, VOCAB, (n, 1))
    ids = (start + 3 * torch.arange(LENGTH + 1)) % (VOCAB - 1) + 1
    length = torch.randint(2, LENGTH + 1, (n, 1))
    position = torch.arange(LENGTH + 1)[None]
    return ids.masked_fill(position > length, 0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x, pad):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q * DIM**-0.5) @ k.transpose(-2, -1)
        lowest = torch.finfo(scores.dtype).min
        causal = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        hidden = causal[None] | pad[:, None, :] | pad[:, :, None]
        weights = F.softmax(scores.masked_fill(hidden, lowest), dim=-1)
        return self.proj(weights @ v)


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(LENGTH, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        x = x + self.attention(self.norm1(x), ids == 0)
        x = x + self.mlp(self.norm2(x))
        return self.head(x)


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for step in range(STEPS):
    ids = batch(12)
    inputs, targets = ids[:, :-1], ids[:, 1:]
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(inputs)
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=0)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 10 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.4f}")
