import torch
from torch import nn


class TinyAdafactor(torch.optim.Optimizer):
    """Second moments as an outer product of row and column means (Shazeer & Stern)."""

    def __init__(self, params, lr=0.02, decay=0.95, eps=1e-30):
        super().__init__(params, dict(lr=lr, decay=decay, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad
                sq = grad * grad + group["eps"]
                s = self.state[p]
                if p.dim() == 2:
                    if not s:
                        s["row"], s["col"] = sq.mean(1), sq.mean(0)
                    s["row"].lerp_(sq.mean(1), 1 - group["decay"])
                    s["col"].lerp_(sq.mean(0), 1 - group["decay"])
                    r = (s["row"] / s["row"].mean()).rsqrt()
                    update = grad * r[:, None] * s["col"].rsqrt()[None, :]
                else:
                    s.setdefault("v", sq.clone()).lerp_(sq, 1 - group["decay"])
                    update = grad * s["v"].rsqrt()
                rms = update.float().pow(2).mean().sqrt().clamp(min=1.0)
                p.add_((update.float() / rms).to(p.dtype), alpha=-group["lr"])


torch.manual_seed(0)
emb = nn.Embedding(100, 16)
head = nn.Linear(16, 10)
model = nn.Sequential(emb, head).half()
opt = TinyAdafactor(model.parameters())
for step in range(80):
    ids = torch.randint(0, 100, (64,))
    loss = nn.functional.cross_entropy(model(ids).float(), ids % 10)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f}")
