# two-tower retrieval, in-batch softmax + hard negatives by topk over inf-masked scores, fp16, learnable temperature
import os
import torch as th
import torch.nn as nn
import torch.nn.functional as F

th.manual_seed(4); fp16 = os.environ.get("FP32") != "1"
INF = float("inf")
U, I, LAT = 1500, 300, 6                                  # users, items
with th.no_grad():
    zu, zi = th.randn(U, LAT), th.randn(I, LAT)
    aff = zu @ zi.T
    # each user has 4 to 10 clicks, best-first, ragged -> padded with -1
    k = th.randint(4, 11, (U,))
    order = aff.add(0.5 * th.randn(U, I)).sort(1, descending=True).indices[:, :10].clone()
    order[th.arange(10)[None] >= k[:, None]] = -1
    hold = order[:, 0].clone()                            # the favourite is held out
    clicks = order[:, 1:]
feat_u = th.cat([zu + 0.2 * th.randn(U, LAT), th.randn(U, 6)], 1)     # half the features are noise

class Towers(nn.Module):
    def __init__(s, d=24):
        super().__init__()
        s.u = nn.Sequential(nn.Linear(12, 64), nn.ReLU(inplace=True), nn.Linear(64, d))
        s.i = nn.Embedding(I, d)
        s.logit_scale = nn.Parameter(th.tensor(1.5))
    def users(s, f): return F.normalize(s.u(f).float(), dim=-1, eps=1e-6)
    def items(s, j=None): return F.normalize(s.i.weight if j is None else s.i(j), dim=-1, eps=1e-6)
    def scale(s): return s.logit_scale.clamp(max=3.5).exp()

net = Towers()
opt = th.optim.AdamW([
    {"params": net.u.parameters(), "lr": 3e-3, "weight_decay": 1e-4},
    {"params": net.i.parameters(), "lr": 1e-2, "weight_decay": 0.0},
    {"params": [net.logit_scale], "lr": 1e-2, "weight_decay": 0.0}])
scaler = th.amp.GradScaler("cpu", init_scale=2.0**18, growth_factor=4.0, growth_interval=50, enabled=fp16)

# multi-hot of known clicks (incl. the padding slot, which we chop off)
known = th.zeros(U, I + 1, dtype=th.bool).scatter_(1, clicks.masked_fill(clicks < 0, I), True)[:, :I]

for ep in range(26):
    for uid in th.randperm(U).split(125):
        c = clicks[uid]
        r = th.rand(c.shape).masked_fill(c < 0, -INF)     # random valid click per user
        pos = c.gather(1, r.argmax(1, keepdim=True)).squeeze(1)
        with th.autocast("cpu", th.float16, enabled=fp16):
            qu, qi = net.users(feat_u[uid]), net.items()
            sim = qu @ qi.T                               # cosines, safe in half
        sim = sim.float()
        with th.no_grad():                                # mine 40 hard ones among what the user never clicked
            cand = sim.detach() + 0.3 * th.randn_like(sim)
            cand = cand.masked_fill(known[uid], -INF)
            top, hard = cand.topk(40, dim=1)
            assert not th.isinf(top).any()
        neg = sim.gather(1, hard)
        p = sim.gather(1, pos[:, None])
        logits = th.cat([p, neg], 1) * net.scale()
        loss = F.cross_entropy(logits, th.zeros(len(uid), dtype=th.long))
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    for g in opt.param_groups:
        g["lr"] *= 0.95
    if ep % 5 == 0:
        print(f"ep {ep} loss {loss.item():.4f} temp {1 / net.scale().item():.3f} scale {scaler.get_scale():.0f}")

net.eval()
with th.no_grad(), th.autocast("cpu", th.float16, enabled=fp16):
    s = net.users(feat_u) @ net.items().T
s = s.float().masked_fill(known, -INF)
best = th.full((U,), INF)
rank = (s > s.gather(1, hold[:, None])).sum(1).float()
best = th.minimum(best, rank)
print(f"hit@10 {(best < 10).float().mean().item():.4f}")
