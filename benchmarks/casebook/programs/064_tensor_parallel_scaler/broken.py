import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.float().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)  # each rank holds half of the hidden units
    mlp = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))
    opt = torch.optim.SGD(mlp.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)
    torch.manual_seed(5)  # both ranks see the same batches
    for step in range(60):
        x = torch.randn(32, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            out = AllReduce.apply(mlp(x))
        loss = nn.functional.mse_loss(out, x.sum(1, keepdim=True) * 2)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if rank == 0 and step % 6 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    scales = [None, None]
    dist.all_gather_object(scales, scaler.get_scale())
    if rank == 0:
        print("the ranks' scales agree" if scales[0] == scales[1] else "the ranks' scales differ", scales)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(os.path.join(os.getcwd(), "store"),), nprocs=2)
