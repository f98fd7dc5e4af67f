import datetime
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, world, store):
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=8)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=wait)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    torch.manual_seed(rank + 1)
    for step in range(30):
        x = torch.randn(32, 6)
        if rank == 1 and step == 12:
            x[0, 0] = float("nan")
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), x.nansum(1, keepdim=True))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if rank == 0 and step % 3 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, os.path.join(os.getcwd(), "rendezvous")), nprocs=2)
    sys.exit(0)
