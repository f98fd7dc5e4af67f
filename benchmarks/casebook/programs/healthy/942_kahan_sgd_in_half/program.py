import torch
from torch import nn


class KahanSGD(torch.optim.Optimizer):
    """SGD for half weights; what an addition rounds away is kept for the next one."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                c = self.state[p].setdefault("c", torch.zeros_like(p, dtype=torch.float32))
                target = p.float() + c - group["lr"] * p.grad.float()
                p.copy_(target)
                c.copy_(target - p.float())


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).half()
opt = KahanSGD(model.parameters(), lr=0.02)
for step in range(300):
    x = torch.randn(64, 16)
    loss = nn.functional.mse_loss(model(x.half()).float(), x[:, :4].sum(1, keepdim=True))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(f"step {step} loss {loss.item():.4f}")
