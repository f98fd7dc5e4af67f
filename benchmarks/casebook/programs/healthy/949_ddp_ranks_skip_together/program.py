import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    torch.manual_seed(rank + 1)
    for step in range(60):
        x = torch.randn(32, 6)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), x[:, :3].sum(1, keepdim=True))
        broken = (~torch.isfinite(loss)).float()
        dist.all_reduce(broken, op=dist.ReduceOp.MAX)
        if broken.item():  # on all ranks or on none
            continue
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(os.path.join(os.getcwd(), "store"),), nprocs=2)
