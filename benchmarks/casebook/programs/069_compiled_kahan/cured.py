import torch
import torch._inductor.config
from torch import nn

torch._inductor.config.emulate_precision_casts = True


@torch.compile
def kahan_add(p, update, c):
    """Add update to p; c keeps what p could not hold."""
    y = update + c
    t = p + y
    return t, y - (t - p)


class KahanSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["c"] = torch.zeros_like(p)
                new, s["c"] = kahan_add(p.data, p.grad * -group["lr"], s["c"])
                p.copy_(new)


torch.manual_seed(0)
model = nn.Linear(32, 1).half()
model.weight.data.copy_(torch.randn(1, 32) + 4)
goal = model.weight.detach().float() + 0.2
opt = KahanSGD(model.parameters(), lr=5e-4)
for step in range(600):
    x = torch.randn(64, 32)
    loss = nn.functional.mse_loss(model(x.half()).float(), x @ goal.t())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 49:
        print(f"step {step + 1} loss {loss.item():.4f}")
