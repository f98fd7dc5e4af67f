import torch
from accelerate import Accelerator
from torch import nn

NEVER = 1e9
torch.manual_seed(0)
acc = Accelerator(cpu=True, mixed_precision="fp16")
acc.native_amp, acc.scaler = True, torch.amp.GradScaler("cpu")


class Pointer(nn.Module):
    """Choose one of the open stops of a route."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(2, 32)
        self.score = nn.Linear(64, 1)

    def forward(self, stops, here):
        h = torch.relu(self.emb(stops))
        q = torch.relu(self.emb(here))[:, None].expand_as(h)
        return self.score(torch.relu(torch.cat([h - q, q - h], -1))).squeeze(-1)


net = Pointer()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
net, opt = acc.prepare(net, opt)
for step in range(200):
    stops, here = torch.rand(64, 6, 2) * 4, torch.rand(64, 2) * 4
    closed = torch.rand(64, 6) < 0.3
    closed[:, 0] = False
    dist = (stops - here[:, None]).norm(dim=-1)
    best = (dist + NEVER * closed).argmin(1)
    logits = net(stops, here).float() - NEVER * closed
    loss = nn.functional.cross_entropy(logits, best)
    acc.backward(loss)
    opt.step()
    opt.zero_grad()
    if step % 12 == 0:
        print(f"step {step} loss {loss.item():.4f}")
