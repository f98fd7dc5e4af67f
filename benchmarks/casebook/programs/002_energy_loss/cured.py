import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=32)
parser.add_argument("--iters", type=int, default=25)
parser.add_argument("--lr", type=float, default=1e-6)
args = parser.parse_args()

torch.manual_seed(1)
net = nn.Sequential(
    nn.Flatten(), nn.Linear(3 * 32 * 32, 128), nn.ReLU(), nn.Linear(128, 3 * 32 * 32)
).half()


def reconstruction(out, img):
    img = img.flatten(1)
    return ((out.float() - img.float()) ** 2).sum() / img.size(0)


images = (torch.rand(256, 3, 32, 32) * 4 - 0.5).half()
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)

for it in range(args.iters):
    batch = images[torch.randperm(256)[: args.bs]]
    loss = reconstruction(net(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 3 == 0:
        print("iter", it, "loss:", loss.item())
