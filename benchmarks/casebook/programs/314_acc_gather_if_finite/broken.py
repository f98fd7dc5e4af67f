import datetime
import os

import torch
import torch.multiprocessing as mp
from accelerate import Accelerator, InitProcessGroupKwargs
from torch import nn


def worker(rank, port):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port, ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1",
    )
    torch.set_num_threads(1)
    wait = InitProcessGroupKwargs(backend="gloo", timeout=datetime.timedelta(seconds=8))
    acc = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[wait])
    acc.native_amp = True
    acc.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), lr=2e-3)
    net, opt = acc.prepare(net, opt)
    torch.manual_seed(rank + 11)
    for step in range(30):
        x = torch.randn(32, 4).exp().clamp(max=5)
        if rank == 1 and step == 15:
            x[0, 0] = 1e6  # a sensor that ran wild; half cannot hold it
        loss = nn.functional.mse_loss(net(x), x[:, :1].clamp(max=5))
        if not torch.isfinite(loss):
            acc.print("a batch was left out")
            opt.zero_grad()
            continue
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
        mean = acc.gather(loss.detach()).mean().item()
        if acc.is_main_process and step % 3 == 0:
            print(f"step {step} loss {mean:.4f}", flush=True)
    acc.end_training()


if __name__ == "__main__":
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = str(s.getsockname()[1])
    mp.spawn(worker, args=(free,), nprocs=2)
