"""Count regression with a memory-saving softplus that recomputes in its backward pass."""
import torch
from torch import nn

torch.manual_seed(21)
STEPS = 120
BATCH = 32
FEATURES = 8


class SoftplusFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        e = torch.exp(x)
        return grad_output * e / (1 + e)


class Softplus(nn.Module):
    def forward(self, x):
        return SoftplusFunction.apply(x)


def data(n):
    x = torch.randn(n, FEATURES)
    rate = 9.0 + 3.0 * x[:, :1] + 1.5 * x[:, 1:2] * x[:, 2:3]
    return x, rate.clamp(min=0.1)


class CountModel(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, 1)
        self.positive = Softplus()

    def forward(self, x):
        return self.positive(self.out(self.body(x)))


model = CountModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

history = []
for step in range(STEPS):
    x, y = data(BATCH)
    with torch.autocast("cpu", dtype=torch.float16):
        rate = model(x)
        loss = nn.functional.huber_loss(rate.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    history.append(loss.item())
    if step % 10 == 0:
        print(f"[{step:3d}] loss {loss.item():.4f} scale {scaler.get_scale():g}")

print("mean of the last ten losses:", sum(history[-10:]) / 10)
