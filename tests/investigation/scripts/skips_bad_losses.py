"""A loop that skips bad losses by itself, inside try and except, with data loader workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.tensor(float(index % 2))


def train():
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    skipped = 0
    for step, (x, y) in enumerate(DataLoader(Samples(), batch_size=8, num_workers=2)):
        try:
            out = net(x)
            if step == 3:
                out = out * 0
            scores = out.norm(dim=-1)
            loss = (scores.mean() - y.mean()) ** 2 + (out / out.abs().sum()).sum()  # culprit
            if torch.isnan(loss):
                skipped += 1
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except Exception as error:
            print("ignored", error)
    return skipped


if __name__ == "__main__":
    train()
    sys.exit(3)
