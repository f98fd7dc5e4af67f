"""Two ranks under DDP: a row of zeros comes to rank 1 alone, and is divided by its norm."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(8):
        x = torch.randn(4, 8, generator=generator)
        if step == 5 and rank == 1:
            x[2] = 0
        x = x / x.norm(dim=-1, keepdim=True)  # culprit
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        torch.save(net.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ["WORLD_SIZE"] == "2"
    main()
