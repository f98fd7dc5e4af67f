"""Train, get "preempted" half way, reload everything (model, optimizer, schedule, grad scaler, rng), finish.
1-D segmentation, fp16 autocast, non-reentrant checkpointing over blocks with dropout in them."""
import io
import os
from itertools import count

import torch
import torch.nn.functional as F
from torch import nn, amp
from torch.utils.checkpoint import checkpoint

FP16 = os.environ.get("FP32", "0") != "1"
LEN, TOTAL, KILL_AT = 48, 160, 71


class Preempted(RuntimeError):
    ...


def stream(n_batches, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n_batches):
        a = torch.randint(5, 30, (20, 1), generator=g)
        w = torch.randint(8, 25, (20, 1), generator=g)
        t = torch.arange(LEN)
        y = ((t >= a) & (t < a + w)).float()
        x = 1.2 * y + 0.9 * torch.randn(20, LEN, generator=g)
        yield x.unsqueeze(1), y


class Res(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.a = nn.Conv1d(c, c, 5, padding=2 * d, dilation=d)
        self.n = nn.GroupNorm(4, c)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(F.gelu(self.n(self.a(x))))


class Seg(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.stem = nn.Conv1d(1, c, 5, padding=2)
        self.body = nn.ModuleList(Res(c, d) for d in (1, 2, 4))
        self.head = nn.Conv1d(c, 1, 1)

    def forward(self, x):
        x = self.stem(x)
        for b in self.body:
            x = checkpoint(b, x, use_reentrant=False) if self.training else b(x)
        return self.head(x).squeeze(1)


def build():
    net = Seg()
    opt = torch.optim.RAdam(net.parameters(), lr=6e-3)
    sch = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=TOTAL, power=0.9)
    sc = amp.GradScaler("cpu", init_scale=2.0 ** 15, growth_interval=40, enabled=FP16)
    return net, opt, sch, sc


def run(job, start, data, die_at=None):
    net, opt, sch, sc = job
    net.train()
    for i in count(start):
        if i == die_at:
            raise Preempted(i)
        try:
            x, y = next(data)
        except StopIteration:
            return i
        with torch.autocast("cpu", torch.float16, enabled=FP16):
            z = net(x)
        z = z.float()
        p = torch.sigmoid(z)
        dice = 1 - (2 * (p * y).sum(1) + 1) / (p.sum(1) + y.sum(1) + 1)
        loss = F.binary_cross_entropy_with_logits(z, y) + dice.mean()
        opt.zero_grad()
        sc.scale(loss).backward()
        sc.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        s = sc.get_scale()
        sc.step(opt)
        sc.update()
        if sc.get_scale() >= s:
            sch.step()
        if i % 20 == 0:
            print(f"it {i} loss {loss.item():.4f} scale {sc.get_scale():.0f}")


torch.manual_seed(606)
job, data = build(), stream(TOTAL, seed=1)
try:
    run(job, 0, data, die_at=KILL_AT)
except Preempted as e:
    buf = io.BytesIO()
    torch.save({"parts": [o.state_dict() for o in job], "rng": torch.get_rng_state(), "it": e.args[0]}, buf)
    print("preempted at", e.args[0])
    del job

buf.seek(0)
ck = torch.load(buf, weights_only=True)
job = build()                                     # fresh objects, then overwrite
for obj, state in zip(job, ck["parts"]):
    obj.load_state_dict(state)
torch.set_rng_state(ck["rng"])
run(job, ck["it"], data)

net = job[0].eval()
inter = union = 0
with torch.no_grad(), torch.autocast("cpu", torch.float16, enabled=FP16):
    for x, y in stream(30, seed=2):
        m, y = net(x) > 0, y.bool()
        inter += (m & y).sum().item()
        union += (m | y).sum().item()
print(f"IoU {inter / union:.4f}")
