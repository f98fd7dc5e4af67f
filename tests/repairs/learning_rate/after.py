# learning_rate(rate=0.05, part=0.1)
import argparse

import torch

p = argparse.ArgumentParser()
p.add_argument("--lr", type=float, default=0.005)
p.add_argument("--dropout", type=float, default=0.05)
args = p.parse_args()
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)
