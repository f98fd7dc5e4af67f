"""A script for torchrun, as a user would write it: trains, resumes after a restart, writes its weights.

``torchrun ... -m tests.dist.torchrun_job RUN_DIR ENGINE STEPS [KILL_RANK KILL_STEP ...]``; a rank in the
list kills itself at that step, once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import halfguard as hg
from tests.dist.jobs import Engine, batch_of, full_state, loss_fn, make, optimizer_of


def main(run_dir: Path, engine: Engine, steps: int, kills: list[tuple[int, int]]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model, _ = make(engine)
    optimizer = optimizer_of(model, "adamw")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    config = {"recovery": {"store": "disk", "every": 5}, "scale": {"growth_interval": 7}}
    guard = hg.Guard(model, optimizer, config, scheduler=scheduler, run_dir=run_dir)
    guard.resume()
    for step in range(guard.step_index, steps):
        for number, (who, when) in enumerate(kills):
            mark = run_dir / f"killed-{number}"
            if (who, when) == (rank, step) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        inputs, labels = batch_of(step, ranks, rank)
        guard.step(loss_fn, (inputs + 0.01 * torch.randn_like(inputs), labels))  # random
    guard.close()
    weights = full_state(model)
    if rank == 0:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, run_dir / "end")
    dist.destroy_process_group()


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[4:]]
    main(
        Path(sys.argv[1]),
        sys.argv[2],  # type: ignore[arg-type]
        int(sys.argv[3]),
        list(zip(numbers[::2], numbers[1::2], strict=True)),
    )
