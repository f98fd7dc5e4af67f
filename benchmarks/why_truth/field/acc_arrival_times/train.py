# %%
import torch
from accelerate import Accelerator
from torch import nn

# %%
accelerator = Accelerator(cpu=True)
torch.manual_seed(11)


# %%
class Hawkes(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.rate = nn.Linear(24, 1)

    def forward(self, gaps):
        h, _ = self.rnn(gaps.unsqueeze(-1))
        return nn.functional.softplus(self.rate(h)).squeeze(-1)


# %%
model = Hawkes().half()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
model, opt = accelerator.prepare(model, opt)

# %%
for step in range(15):
    gaps = torch.rand(16, 60).half() * 40
    if step == 9:
        gaps = gaps * 60  # seconds instead of minutes
    arrival = torch.cumsum(gaps, dim=1)
    decay = torch.exp(-(arrival[:, -1:] - arrival) / 100)
    rate = model(gaps / 40)
    loss = (rate * decay - 0.1).float().pow(2).mean()
    opt.zero_grad()
    accelerator.backward(loss)
    opt.step()
    print(step, float(loss))
