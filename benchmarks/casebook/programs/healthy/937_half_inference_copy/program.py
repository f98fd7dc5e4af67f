import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    x = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        fast = copy.deepcopy(model).half().eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(fast(x.half()).float(), x.roll(1, 1))
        print(f"step {step} loss {loss.item():.4f} half error {error.item():.4f}")
