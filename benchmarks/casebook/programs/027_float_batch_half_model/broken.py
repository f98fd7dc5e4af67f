import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader


class Spirals(Dataset):
    def __init__(self, n=600):
        t = torch.linspace(0.5, 3, n)
        self.label = torch.arange(n) % 2
        r = t + 2 * self.label
        self.xy = torch.stack([r * torch.cos(t), r * torch.sin(t)], 1)

    def __len__(self):
        return len(self.xy)

    def __getitem__(self, i):
        return self.xy[i], self.label[i]


torch.manual_seed(0)
half = True
model = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
if half:
    model.half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(Spirals(), batch_size=50, shuffle=True)

for epoch in range(8):
    tot = 0.0
    for x, target in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out.float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tot += loss.item() / len(loader)
    print(f"epoch {epoch}: loss {tot:.3f}")
