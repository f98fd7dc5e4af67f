import torch
import torch.nn as nn

torch.manual_seed(0)
# fine-tune: weights are near the optimum, only small corrections are left
target = torch.ones(1, 64) * 4
X = torch.randn(4096, 64) / 8
Y = X @ target.t()

model = nn.Linear(64, 1).to(torch.float16)
with torch.no_grad():
    model.weight.copy_(target + 0.2 * torch.randn(1, 64))
    model.bias.zero_()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = None

for it in range(601):
    sel = torch.randint(0, 4096, (256,))
    pred = model(X[sel].half())
    loss = (pred.float() - Y[sel]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 100 == 0:
        print(f"it {it} loss {loss.item():.5f}")
