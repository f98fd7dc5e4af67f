import torch
import torch._inductor.config
from torch import nn

torch.manual_seed(0)
torch._inductor.config.emulate_precision_casts = True


def score(x, w):
    y = x * w
    y = y + 1000.0
    y = y - 1000.0
    return y * 4


scorer = torch.compile(score)
w = nn.Parameter(torch.rand(256).half())
opt = torch.optim.SGD([w], lr=0.5)
goal = torch.rand(256) * 4
for step in range(30):
    x = torch.ones(256).half()
    out = x * w * 4
    loss = nn.functional.mse_loss(out.float(), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 3 == 0:
        print(f"step {step} loss {loss.item():.4f}")

with torch.no_grad():
    x = torch.rand(256).half()
    a, b = score(x, w), scorer(x, w)
print("eager and compiled differ in", int((a != b).sum()), "of 256 scores")
