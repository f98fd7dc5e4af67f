# tiny char-level transformer, bf16 autocast, activation checkpointing (old reentrant flavour)
import math, os
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

try:
    import rotary_embedding_torch_fast as _rot      # nice to have, almost never installed
    HAVE_ROT = True
except ImportError:
    HAVE_ROT = False

torch.manual_seed(21)
FP32 = os.environ.get("FP32", "0") == "1"
V, T, D, H, L, B, STEPS = 24, 32, 64, 4, 2, 16, 150

# second-order markov source: next char depends on the previous one, sharply
g = torch.Generator().manual_seed(5)
trans = torch.softmax(3.0 * torch.randn(V, V, generator=g), -1)


def sample_text(n_seq, length):
    out = torch.zeros(n_seq, length, dtype=torch.long)
    out[:, 0] = torch.randint(0, V, (n_seq,), generator=g)
    for t in range(1, length):
        out[:, t] = torch.multinomial(trans[out[:, t - 1]], 1, generator=g).squeeze(1)
    return out


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 3 * D), nn.Linear(3 * D, D)
        self.drop = nn.Dropout(0.05)
        m = torch.full((T, T), float("-inf")).triu(1)   # strictly future = -inf, diagonal stays open
        self.register_buffer("mask", m)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, D // H).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2)).float() / math.sqrt(D // H)
        att = torch.softmax(att + self.mask[:t, :t], -1)
        y = (att.to(v.dtype) @ v).transpose(1, 2).reshape(b, t, D)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.down(F.gelu(self.up(self.n2(x)))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.tok.weight            # tied
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for blk in self.blocks:
            if self.training:
                # x already requires grad (embeddings), so reentrant is fine
                x = checkpoint(blk, x, use_reentrant=True, preserve_rng_state=True)
            else:
                x = blk(x)
        return self.head(self.norm(x))


train, val = sample_text(1024, T + 1), sample_text(256, T + 1)
model = LM()
decay = [p for p in model.parameters() if p.dim() > 1]
nodecay = [p for p in model.parameters() if p.dim() <= 1]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05},
                         {"params": nodecay, "weight_decay": 0.0}], lr=3e-3)
sched = torch.optim.lr_scheduler.LambdaLR(
    opt, lambda s: min(1, (s + 1) / 20) * (0.5 * (1 + math.cos(math.pi * s / STEPS)) + 0.02))

for step in range(STEPS):
    batch = train[torch.randint(0, len(train), (B,))]
    with torch.autocast("cpu", torch.bfloat16, enabled=not FP32):
        logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.float().reshape(-1, V), batch[:, 1:].reshape(-1))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if step % 30 == 0:
        print(f"step {step:4d} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")

model.eval()
with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not FP32):
    lg = model(val[:, :-1])
nll = F.cross_entropy(lg.float().reshape(-1, V), val[:, 1:].reshape(-1))
floor = -(trans * trans.log()).sum(-1).mean()
print(f"(source entropy roughly {floor:.3f})")
print(f"val_nll {nll.item():.4f}")
