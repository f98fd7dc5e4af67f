import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 2))
        nn.init.constant_(self.net[2].bias, -18.0)

    def forward(self, x):
        mean, raw = self.net(x).chunk(2, -1)
        return mean, nn.functional.softplus(raw)


def train():
    set_seed(2)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=64.0)
    x = torch.randn(256, 8)
    data = TensorDataset(x, x[:, :1] - 18)
    model = Density()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=32))
    for epoch in range(2):
        for inputs, target in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                mean, var = model(inputs)
                mean, var, target = mean.half(), var.half(), target.half()
                nll = 0.5 * (torch.log(var) + (target - mean) ** 2 / var)
            accelerator.backward(nll.mean())
            optimizer.step()
        accelerator.print(epoch, nll.mean().item())


if __name__ == "__main__":
    train()
