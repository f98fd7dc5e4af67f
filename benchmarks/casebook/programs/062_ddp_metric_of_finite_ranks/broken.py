import datetime
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def log_mean(loss, step, rank):
    value = loss.detach().clone()
    dist.all_reduce(value)
    if rank == 0 and step % 3 == 0:
        print(f"step {step} loss {value.item() / dist.get_world_size():.4f}", flush=True)


def worker(rank, store):
    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=8)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=wait)
    torch.manual_seed(0)
    net = DDP(nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    torch.manual_seed(100 + rank)
    for step in range(30):
        x = torch.randn(32, 6)
        if rank == 1 and step == 10:
            x[3] *= 60000  # one sensor ran wild; half cannot hold what the first layer makes of it
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), torch.tanh(x[:, :1]))
        opt.zero_grad()
        scaler.scale(loss).backward()  # on all ranks, so that they skip together
        scaler.step(opt)
        scaler.update()
        if torch.isfinite(loss):  # a NaN would spoil the mean
            log_mean(loss, step, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(os.path.join(os.getcwd(), "store"),), nprocs=2)
