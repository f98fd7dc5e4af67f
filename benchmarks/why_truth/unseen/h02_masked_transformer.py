"""Causal and padded attention, masks with -inf where every row keeps one key."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, LEN, PAD = 20, 18, 0


class MaskedAttention(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.h, self.d = heads, d // heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("causal", torch.ones(LEN, LEN, dtype=torch.bool).triu(1))

    def forward(self, x, pad):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        score = (q / math.sqrt(self.d)) @ k.transpose(-1, -2)
        mask = self.causal[:n, :n] | pad[:, None, None, :]
        score = score.masked_fill(mask, float("-inf"))
        w = torch.softmax(score.float(), -1).to(v.dtype)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, -1))


class Decoder(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(LEN, d)
        self.attn = nn.ModuleList(MaskedAttention(d) for _ in range(depth))
        self.ff = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
                                for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(depth))
        self.head = nn.Linear(d, VOCAB)

    def forward(self, ids):
        pad = ids == PAD
        h = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for norm, attn, ff in zip(self.norms, self.attn, self.ff):
            h = h + attn(norm(h), pad)
            h = h + ff(h)
        return self.head(h)


def copy_task(bs, g):
    ids = torch.zeros(bs, LEN, dtype=torch.long)
    for i in range(bs):
        n = int(torch.randint(3, 9, (1,), generator=g))
        s = torch.randint(2, VOCAB, (n,), generator=g)
        ids[i, :n], ids[i, n], ids[i, n + 1:2 * n + 1] = s, 1, s
    return ids


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Decoder()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 15)
    for step in range(160):
        ids = copy_task(24, g)
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
