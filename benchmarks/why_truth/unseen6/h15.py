"""Sequence tagger: checkpointed blocks, accumulation, averaged weights, stop and resume."""
import copy
import io
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

AMP, ACC = torch.float16, 3


def data(n):
    x = torch.randn(n, 16, 4)
    s = torch.cumsum(x[..., 0], 1) + x[..., 1]
    return x, (s > 0).long() + (s > 2).long()


class Tagger(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.inp = nn.Linear(4, w)
        self.blocks = nn.ModuleList(nn.Conv1d(w, w, 5, padding=4) for _ in range(3))
        self.out = nn.Linear(w, 3)

    def forward(self, x):
        h = self.inp(x).transpose(1, 2)
        for b in self.blocks:
            h = h + checkpoint(lambda z, b=b: F.gelu(b(z)[..., :z.size(-1)]), h, use_reentrant=False)
        return self.out(h.transpose(1, 2))


class Run:
    def __init__(self):
        self.net = Tagger()
        self.avg = copy.deepcopy(self.net).requires_grad_(False)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=4e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 22)
        self.step = 0

    def parts(self):
        return {"net": self.net, "avg": self.avg, "opt": self.opt, "scaler": self.scaler}

    def train(self, x, y, until):
        while self.step < until:
            self.opt.zero_grad()
            for _ in range(ACC):
                idx = torch.randint(0, len(x), (20,))
                with torch.autocast("cpu", dtype=AMP):
                    logits = self.net(x[idx])
                loss = F.cross_entropy(logits.float().transpose(1, 2), y[idx])
                self.scaler.scale(loss / ACC).backward()
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.scaler.step(self.opt)
            self.scaler.update()
            with torch.no_grad():
                for a, p in zip(self.avg.parameters(), self.net.parameters()):
                    a.lerp_(p, 0.05)
            if self.step % 30 == 0:
                print(f"step {self.step} loss {loss.item():.4f} scale {self.scaler.get_scale():g}")
            self.step += 1


torch.manual_seed(37)
x, y = data(3000)
vx, vy = data(500)
run = Run()
run.train(x, y, 100)
buf = io.BytesIO()
torch.save({k: p.state_dict() for k, p in run.parts().items()}, buf)
buf.seek(0)
again, state = Run(), torch.load(buf)
for k, p in again.parts().items():
    p.load_state_dict(state[k])
again.step = run.step
again.train(x, y, 210)
with torch.no_grad(), torch.autocast("cpu", dtype=AMP):
    acc = (again.avg(vx).argmax(-1) == vy).float().mean().item()
print(f"val_acc {acc:.4f}")
