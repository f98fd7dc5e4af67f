import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader


class ECG(Dataset):
    def __init__(self, n=400, length=64):
        g = torch.Generator().manual_seed(3)
        self.y = torch.randint(0, 2, (n,), generator=g)
        t = torch.linspace(0, 6.28, length)
        self.signals = torch.sin(t * (2 + 3 * self.y[:, None])) + 0.3 * torch.randn(n, length, generator=g)
        self.signals[271] = 0.0

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        x = self.signals[i] / self.signals[i].std()
        return x, self.y[i]


def run():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(6):
        losses = []
        for x, y in DataLoader(ECG(), batch_size=20):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: train loss {sum(losses) / len(losses):.4f}")


run()
