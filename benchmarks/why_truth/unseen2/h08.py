"""BF16 weights with an FP32 master copy kept by hand; very small learning rate for the size of the weights."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
STEPS, BATCH = 180, 32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 48)
        self.fc2 = nn.Linear(48, 1)

    def forward(self, x):
        return self.fc2(F.silu(self.fc1(x)))


def data(n):
    x = torch.randn(n, 12)
    return x, (x[:, :4].sum(1, keepdim=True) * 0.5).tanh()


model = Net().to(torch.bfloat16)
master = [p.detach().clone().float().requires_grad_(True) for p in model.parameters()]
optimizer = torch.optim.Adam(master, lr=1e-3)

for step in range(STEPS):
    x, y = data(BATCH)
    loss = F.mse_loss(model(x.to(torch.bfloat16)).float(), y)
    model.zero_grad(set_to_none=True)
    loss.backward()
    for m, p in zip(master, model.parameters()):
        m.grad = p.grad.float()
    optimizer.step()
    with torch.no_grad():
        for m, p in zip(master, model.parameters()):
            p.copy_(m)
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d} loss {loss.item():.5f}")
