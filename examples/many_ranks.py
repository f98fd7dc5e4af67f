"""A job for torchrun: DDP or FSDP2, one NaN on one rank, and resuming after a crash.

``torchrun --nproc-per-node=2 examples/many_ranks.py runs/ranks`` trains; started again, it resumes from the
last good snapshot. With ``--fsdp`` the model is sharded.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg

STEPS = 40


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs).float(), targets)


def batch_of(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Return this rank's part of the data for a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 16, generator=generator)
    if (step, rank) == (20, 1):
        inputs[3] = torch.nan  # one bad sample, on one rank
    return inputs, inputs[:, :1] ** 2


def main(run_dir: str, sharded: bool) -> None:
    dist.init_process_group()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    if sharded:
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float16, torch.float32))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    config = {"clip": {"max_norm": 1.0}, "recovery": {"store": "disk", "every": 10}}
    guard = hg.Guard(model, optimizer, config, run_dir=run_dir)
    if guard.resume() and dist.get_rank() == 0:
        print(f"resuming at step {guard.step_index}")
    for step in range(guard.step_index, STEPS):
        outcome = guard.step(loss_fn, batch_of(step, dist.get_rank()))
        if not outcome.applied and dist.get_rank() == 0:
            print(f"step {step}: {outcome.action}, {outcome.cause} on rank {outcome.ranks}")
    summary = guard.close()
    if dist.get_rank() == 0:
        print(f"{summary.applied} of {summary.steps} steps applied")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], "--fsdp" in sys.argv)
