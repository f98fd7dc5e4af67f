"""Dialogue intent classification: a small encoder over turns and tokens.

Every dialogue is padded to MAX_TURNS turns and every turn to MAX_TOK tokens.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
VOCAB, DIM, HEADS, MAX_TURNS, MAX_TOK, N_INTENT = 120, 32, 4, 4, 8, 6


def build(n, g):
    tokens = torch.zeros(n, MAX_TURNS, MAX_TOK, dtype=torch.long)
    labels = torch.randint(0, N_INTENT, (n,), generator=g)
    for i in range(n):
        turns = int(torch.randint(2, MAX_TURNS + 1, (1,), generator=g))
        for t in range(turns):
            length = int(torch.randint(3, MAX_TOK + 1, (1,), generator=g))
            words = torch.randint(40, VOCAB, (length,), generator=g)
            hint = torch.rand(length, generator=g) < 0.3
            key = 1 + labels[i] * 6 + torch.randint(0, 6, (length,), generator=g)
            tokens[i, t, :length] = torch.where(hint, key, words)
    return tokens, labels


g = torch.Generator().manual_seed(3)
tr_x, tr_y = build(1200, g)
va_x, va_y = build(300, g)


def extended_mask(keep, dtype):
    """(B, L) 0/1 -> additive bias of shape (B, 1, 1, L)."""
    bias = (1.0 - keep[:, None, None, :].float()) * torch.finfo(torch.float32).min
    return bias.to(dtype)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)

    def forward(self, x, bias):
        b, l, _ = x.shape
        q, k, v = self.qkv(x).view(b, l, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-1, -2) * (DIM // HEADS) ** -0.5
        att = (att + bias).softmax(-1)
        return self.proj((att @ v).transpose(1, 2).reshape(b, l, DIM))


class TurnEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.att = SelfAttention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, tok):
        keep = (tok != 0).long()
        x = self.emb(tok)
        x = x + self.att(self.n1(x), extended_mask(keep, torch.get_autocast_dtype("cpu")
                                                   if torch.is_autocast_enabled("cpu") else x.dtype))
        x = x + self.mlp(self.n2(x))
        w = keep.unsqueeze(-1).to(x.dtype)
        return (x * w).sum(1) / w.sum(1).clamp(min=1)


class DialogueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.turns = TurnEncoder()
        self.out = nn.Linear(DIM, N_INTENT)

    def forward(self, x):
        b = x.size(0)
        t = self.turns(x.flatten(0, 1)).view(b, MAX_TURNS, DIM)
        return self.out(t.sum(1))


net = DialogueNet()
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for epoch in range(5):
    run = 0.0
    for idx in torch.randperm(len(tr_x)).split(64):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(tr_x[idx]), tr_y[idx])
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        run += loss.item()
    print(f"epoch {epoch} loss {run / 19:.4f}")

net.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    acc = (net(va_x).argmax(1) == va_y).float().mean().item()
print(f"val_acc {acc:.4f}")
