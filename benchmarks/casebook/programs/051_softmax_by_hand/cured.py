import torch as th
import torch.nn as nn

th.manual_seed(1)


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(5, 6)
        self.experts = nn.Linear(5, 6)

    def forward(self, x):
        return (softmax(self.gate(x) * 8) * self.experts(x)).sum(-1)


m = Mixture()
o = th.optim.SGD(m.parameters(), lr=0.05)
for ep in range(8):
    s = 0
    for b in range(25):
        x = th.randn(40, 5)
        y = th.where(x[:, 0] > 0, x[:, 1], -x[:, 2])
        with th.autocast("cpu", th.float16):
            l = nn.functional.mse_loss(m(x), y)
        o.zero_grad()
        l.backward()
        o.step()
        s += l.item() / 25
    print("epoch", ep, "loss", s)
