import torch
from torch import nn

torch.manual_seed(8)
stations = torch.rand(12, 2) * 3000  # metres


class Kriging(nn.Module):
    """interpolates station values with learned station gains"""

    def __init__(self, pos):
        super().__init__()
        self.register_buffer("pos", pos)
        self.gain = nn.Parameter(torch.ones(len(pos)))

    def forward(self, where, values):
        diff = where[:, None, :] - self.pos[None]
        d2 = (diff * diff).sum(-1)
        w = 1e5 / (1e5 + d2)
        return (w * values * self.gain).sum(-1) * 4


true_gain = torch.rand(12) + 0.5
oracle = Kriging(stations)
oracle.gain.data = true_gain
where = torch.rand(2000, 2) * 3000
values = torch.randn(2000, 12)
with torch.no_grad():
    truth = oracle(where, values)

model = Kriging(stations).half()
model.gain.data = model.gain.data.float()
opt = torch.optim.Adam([model.gain], lr=0.02)
for epoch in range(12):
    for i in range(0, 2000, 250):
        s = slice(i, i + 250)
        out = model(where[s].half(), values[s].half())
        loss = nn.functional.mse_loss(out.float(), truth[s]) / truth.var()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, "loss:", round(loss.item(), 4))
