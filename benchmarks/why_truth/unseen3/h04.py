"""Image-text style contrastive training with a learnable temperature (logits up to 100)."""
import math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def pairs(n, seed):
    w = np.random.default_rng(0)
    A, B = w.standard_normal((8, 20)), w.standard_normal((8, 14))
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, 8))
    a = z @ A + 0.3 * rng.standard_normal((n, 20))
    b = np.tanh(z @ B * 0.5) + 0.1 * rng.standard_normal((n, 14))
    return torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)


class Tower(nn.Module):
    def __init__(self, n_in, d=16, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, width), nn.GELU(), nn.Linear(width, d))

    def forward(self, x):
        h = self.net(x).float()
        return h / h.norm(dim=-1, keepdim=True).clamp(min=1e-6)


class CLIPish(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Tower(20), Tower(14)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        scale = self.logit_scale.clamp(max=math.log(100.0)).exp()
        za, zb = self.a(a), self.b(b)
        with torch.autocast("cpu", enabled=False):
            return scale * za @ zb.t()


def clip_loss(logits):
    t = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, t) + F.cross_entropy(logits.t(), t))


def main():
    torch.manual_seed(0)
    a, b = pairs(2000, 1)
    ta, tb = pairs(200, 2)
    model = CLIPish()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(200):
        i = torch.randint(0, len(a), (48,))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(a[i], b[i])
            loss = clip_loss(logits)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} temp {model.logit_scale.exp().item():.1f} max logit {logits.max().item():.1f} scale {scaler.get_scale():g}")
    with torch.no_grad():
        top1 = (model(ta, tb).argmax(1) == torch.arange(200)).float().mean().item()
    print(f"final retrieval top1 {top1:.4f}")


if __name__ == "__main__":
    main()
