import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="fp16")
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6))
opt = torch.optim.SGD(model.parameters(), lr=1e-8)
model, opt = accelerator.prepare(model, opt)
for step in range(60):
    x = torch.randn(64, 6) * 400
    with accelerator.autocast():
        loss = (model(x) - x).pow(2).sum() / 64
    accelerator.backward(loss)
    opt.step()
    opt.zero_grad()
    if step % 6 == 0:
        print(f"step {step} loss {loss.item():.1f}")
