import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(10, 40)
        self.l2 = nn.Linear(40, 1)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x.to(self.l1.weight.dtype))))


torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
x = torch.randn(320, 10).clamp(min=0)
x[:, 7] = 0
y = x.sum(1, keepdim=True) / 5
loader = DataLoader(TensorDataset(x, y), batch_size=32)
model = Net().to(torch.float16)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(5):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb).float(), yb)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
