import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.amp import GradScaler
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    half = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float32)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    net = FSDP(net, device_id=torch.device("cpu"), mixed_precision=half)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    scaler = ShardedGradScaler("cpu", init_scale=1024.0, growth_interval=6)
    torch.manual_seed(rank + 1)
    for step in range(80):
        x = torch.randn(64, 16)
        y = x[:, :4].sum(1, keepdim=True) + 3
        loss = (net(x).float() - y).abs().sum()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if rank == 0 and step % 8 == 0:
            print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale()}", flush=True)
    scales = [None, None]
    dist.all_gather_object(scales, scaler.get_scale())
    if rank == 0:
        print("scales", "agree" if scales[0] == scales[1] else "differ", scales)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(os.path.join(os.getcwd(), "store"),), nprocs=2)
