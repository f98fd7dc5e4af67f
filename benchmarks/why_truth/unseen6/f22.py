"""Next-item prediction from a user's session with a tiny attention encoder."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(13)
ITEMS, MAXLEN, GROUPS = 120, 10, 12


def sessions(n):
    taste = torch.randint(0, GROUPS, (n,))
    per = ITEMS // GROUPS
    hist = taste[:, None] * per + torch.randint(0, per, (n, MAXLEN))
    noise = torch.rand(n, MAXLEN) < 0.25
    hist[noise] = torch.randint(0, ITEMS, (int(noise.sum()),))
    length = torch.randint(1, MAXLEN + 1, (n,))
    length[torch.rand(n) < 0.02] = 0
    keep = torch.arange(MAXLEN)[None] < length[:, None]
    return hist, keep, taste, length


class Attend(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, keep):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        bias = (1 - keep.to(scores.dtype)) * -1e9
        w = (scores + bias[:, None, None, :]).softmax(-1)
        return self.proj((w.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, d))


class SessionEncoder(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.emb = nn.Embedding(ITEMS, dim)
        self.pos = nn.Parameter(torch.randn(MAXLEN, dim) * 0.02)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = Attend(dim, 4)
        self.ff = nn.Sequential(nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))
        self.head = nn.Linear(dim, GROUPS)

    def forward(self, hist, keep):
        x = self.emb(hist) + self.pos
        x = x + self.att(self.n1(x), keep)
        x = x + self.ff(self.n2(x))
        m = keep[..., None].to(x.dtype)
        pooled = (x * m).sum(1) / m.sum(1).clamp(min=1)
        return self.head(pooled)


def epoch_pass(model, data, opt, scaler, log):
    hist, keep, taste, _ = data
    for k, idx in enumerate(torch.randperm(len(hist)).split(64)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(hist[idx], keep[idx]), taste[idx])
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if k % 20 == 0:
            log(k, loss.item())


if __name__ == "__main__":
    train, valid = sessions(4000), sessions(800)
    model = SessionEncoder()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu")
    for e in range(3):
        epoch_pass(model, train, opt, scaler, lambda k, v: print(f"epoch {e} batch {k} loss {v:.4f}"))
    hist, keep, taste, length = valid
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        pred = model(hist, keep).argmax(-1)
    ok = (pred == taste)[length > 0]
    print(f"val_acc {ok.float().mean().item():.4f}")
