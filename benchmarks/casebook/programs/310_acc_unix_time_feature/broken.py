import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

T0 = 1_700_000_000


class Events(Dataset):
    def __init__(self, n=600):
        g = torch.Generator().manual_seed(0)
        self.ts = T0 + torch.randint(0, 86400 * 30, (n,), generator=g).double()
        self.amount = torch.rand(n, generator=g).double()
        self.age = torch.rand(n, generator=g).double()

    def __len__(self):
        return len(self.ts)

    def __getitem__(self, i):
        row = {"ts": self.ts[i], "amount": self.amount[i], "age": self.age[i]}
        label = (row["amount"] > row["age"]).long()
        feats = torch.stack([row["ts"], row["amount"], row["age"]], -1).half()
        return feats, label


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2)).half()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model, opt, dl = accelerator.prepare(model, opt, DataLoader(Events(), batch_size=50, num_workers=2))
    for epoch in range(4):
        for x, y in dl:
            loss = nn.functional.cross_entropy(model(x).float(), y)
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
        print(f"Epoch {epoch}, loss: {loss.item():.4f}")


if __name__ == "__main__":
    main()
