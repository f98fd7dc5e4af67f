import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.amp import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = FSDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), device_id=torch.device("cpu"))
    opt = torch.optim.SGD(net.parameters(), lr=0.02)
    scaler = GradScaler("cpu", init_scale=1024.0)
    torch.manual_seed(rank)
    for step in range(40):
        x = torch.randn(32, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(net(x), x.mean(1, keepdim=True))
        opt.zero_grad()
        scaler.scale(loss).backward()
        if step == 20 and rank == 1:
            for p in net.parameters():
                if p.grad is not None and p.grad.numel():
                    p.grad.view(-1)[0] = float("inf")  # an overflow in this rank's shard
        scaler.step(opt)
        scaler.update()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    scales = [None, None]
    dist.all_gather_object(scales, scaler.get_scale())
    if rank == 0:
        print("scales", scales)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(os.path.join(os.getcwd(), "store"),), nprocs=2)
