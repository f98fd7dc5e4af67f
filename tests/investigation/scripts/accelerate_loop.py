"""Accelerate: a row of zeros is divided by its standard deviation, at step 9."""

import torch
from torch import nn
from accelerate import Accelerator
from accelerate.utils import set_seed
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        h = self.layer(x)
        h = h * (x.abs().sum(-1, keepdim=True) > 0)
        h = h / h.std(-1, keepdim=True)  # culprit
        return self.head(h)
def main():
    set_seed(0)
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(160, 16); x[77] = 0

    data = torch.utils.data.TensorDataset(x, torch.randint(0, 4, (160,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    net, opt, loader = accelerator.prepare(net, opt, loader)
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        opt.step(); opt.zero_grad()
if __name__ == "__main__":
    main()
