import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d=32, heads=2):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.heads = heads

    def forward(self, x, keep):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q * q.size(-1) ** -0.5) @ k.transpose(-2, -1)
        allowed = keep[:, None, None, :] & torch.ones(n, n, dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


torch.manual_seed(0)
emb, att, head = nn.Embedding(20, 32), Attention(), nn.Linear(32, 20)
params = [*emb.parameters(), *att.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=5e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(80):
    ids = (torch.arange(10) + torch.randint(1, 20, (32, 1))) % 19 + 1
    length = torch.randint(4, 11, (32, 1))
    keep = torch.arange(10) < length  # the first token is always there
    with torch.autocast("cpu", dtype=torch.float16):
        logits = head(att(emb(ids), keep))
        target = ids[:, 1:].masked_fill(~keep[:, 1:], -100)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), target.flatten(), ignore_index=-100)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 5 == 0:
        print(f"step {step} loss {loss.item():.4f}")
