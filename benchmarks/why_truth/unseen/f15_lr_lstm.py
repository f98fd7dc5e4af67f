"""LSTM for the adding problem, BF16 autocast."""
import argparse

import torch
import torch.nn as nn


class AddingLSTM(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(2, hidden, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 1))

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.mlp(out[:, -1]).squeeze(-1)


def adding(bs, length, g):
    values = torch.rand(bs, length, generator=g)
    marks = torch.zeros(bs, length)
    a = torch.randint(0, length // 2, (bs, 1), generator=g)
    b = torch.randint(length // 2, length, (bs, 1), generator=g)
    marks.scatter_(1, a, 1.0).scatter_(1, b, 1.0)
    return torch.stack([values, marks], -1), (values * marks).sum(1) * 10


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--hidden", type=int, default=32)
    ap.add_argument("--lr", type=float, default=0.5)
    ap.add_argument("--momentum", type=float, default=0.9)
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--length", type=int, default=12)
    return ap.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = AddingLSTM(args.hidden)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    mse = nn.MSELoss()
    for step in range(args.steps):
        x, y = adding(64, args.length, g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            pred = model(x)
            loss = mse(pred.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(f"step {step} mse {loss.item():.5g}")


if __name__ == "__main__":
    main()
