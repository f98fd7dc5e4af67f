"""int4-ish quantization aware training, custom autograd.Function, 40% of the labels are junk.
Accuracy against the (noisy) labels can't exceed 0.68; a 4-bit net ends a few points below that ceiling."""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

BF16 = os.environ.get("FP32", "0") in ("0", "")
CLASSES, FEAT, NOISE = 5, 20, 0.40
torch.manual_seed(3)


class RoundClamp(torch.autograd.Function):
    """round(x/s) clamped to [-q, q], gradient passes inside the range only"""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, s, q):
        y = x / s
        inside = (y >= -q) & (y <= q)
        ctx.save_for_backward(inside)
        return torch.round(y).clamp_(-q, q).mul_(s)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return torch.where(inside, g, torch.zeros_like(g)), None, None


class QLinear(nn.Linear):
    def __init__(self, i, o, bits=4):
        super().__init__(i, o)
        self.q = 2 ** (bits - 1) - 1
        self.register_buffer("act_scale", torch.tensor(0.0))

    def forward(self, x):
        with torch.no_grad():
            ws = self.weight.abs().amax() / self.q
            if self.training:
                m = x.detach().float().abs().amax() / 127
                if self.act_scale == 0:
                    self.act_scale.copy_(m)
                else:
                    self.act_scale.lerp_(m, 0.05)
        w = RoundClamp.apply(self.weight, ws, self.q)
        a = RoundClamp.apply(x, self.act_scale, 127)
        return F.linear(a, w, self.bias)


def make(n, teacher):
    x = torch.randn(n, FEAT)
    clean = teacher(x).argmax(1)
    flip = torch.rand(n) < NOISE
    noisy = torch.where(flip, torch.randint(0, CLASSES, (n,)), clean)
    return x, noisy


with torch.no_grad():
    teacher = nn.Linear(FEAT, CLASSES)
    Xtr, Ytr = make(8000, teacher)
    Xte, Yte = make(4000, teacher)

net = nn.Sequential(QLinear(FEAT, 48), nn.ReLU(), nn.Dropout(0.1), QLinear(48, CLASSES))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
EPOCHS = 14
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS)
for ep in range(EPOCHS):
    tot = cnt = 0
    for ix in torch.randperm(len(Xtr)).split(250):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
            out = net(Xtr[ix])
        loss = F.cross_entropy(out.float(), Ytr[ix], label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot, cnt = tot + loss.item() * len(ix), cnt + len(ix)
    sched.step()
    if ep % 4 == 0 or ep == EPOCHS - 1:
        print(f"[{ep:2d}] loss {tot / cnt:.4f}")

net.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
    acc = (net(Xte).argmax(1) == Yte).float().mean().item()
print(f"noisy-label accuracy {acc:.4f}")
