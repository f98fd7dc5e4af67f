import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 1)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
ACC = 128
SCALE = 512.0

for update in range(10):
    optimizer.zero_grad()
    shown = 0.0
    for micro in range(ACC):
        x = torch.randn(16, 10)
        y = x[:, :1] * 4 + 6
        out = model(x.half())
        loss = nn.functional.mse_loss(out.float(), y) * SCALE
        loss.backward()
        shown += loss.item() / SCALE / ACC
    for p in model.parameters():
        p.grad.div_(SCALE)
    optimizer.step()
    print(f"update {update} loss {shown:.4f}")
