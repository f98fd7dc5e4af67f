import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def worker(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    mesh = init_device_mesh("cpu", (2,))
    # the optimizer works on FP32 shards, so there is nothing to scale
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, eps=1e-16, weight_decay=0.0)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    torch.manual_seed(7 + rank)
    for step in range(120):
        x = torch.randn(64, 8)
        y = x[:, :1].sin() * 1e-4  # metres, as the instrument gives them
        out = net(x) * 1e-4
        loss = nn.functional.mse_loss(out.float(), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if rank == 0 and step % 12 == 11:
            print(f"step {step + 1} loss {loss.item() * 1e8:.4f} e-8 m2", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(os.path.join(os.getcwd(), "store"),), nprocs=2)
