"""One of two ranks, ``sharded.py RANK FOLDER``: gradients overflow on rank 1 alone; what comes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import halfguard as hg
from halfguard.records.diagnosis import Diagnosis
from tests.diagnosis.model.checks.helper import cured, found, loss, net

NAMES = ("fsdp1-plain-scaler", "fsdp1-cured", "fsdp2-plain-scaler", "fsdp2-early-optimizer")


def setup(name: str) -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    model: nn.Module = net()
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    if name.startswith("fsdp1"):
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return (
        model,
        early if name == "fsdp2-early-optimizer" else optimizer,
        torch.amp.GradScaler("cpu"),
    )


def examined(model: nn.Module, optimizer: Any, scaler: Any, x: Tensor) -> Diagnosis:
    with torch.autocast("cpu", torch.float16):
        return hg.doctor(
            model, optimizer, scaler=scaler, precision="fp16-mixed", loss=loss, batch=x
        )


def overflow_on_rank_1(
    model: nn.Module, optimizer: Any, scaler: torch.amp.GradScaler, rank: int
) -> float:
    """A step whose gradients overflow in the part that rank 1 holds; the scale after it."""
    with torch.autocast("cpu", torch.float16):
        value = loss(model, torch.ones(4, 4))
    scaler.scale(value).backward()
    if rank == 1:
        last = next(p for p in reversed(list(model.parameters())) if p.grad is not None)
        grad: Any = last.grad
        getattr(grad, "_local_tensor", grad).fill_(torch.inf)
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()


def run(name: str, rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.ones(4, 4)
    model, optimizer, scaler = setup(name)
    before = [type(p) for p in model.parameters()]
    diagnosis = examined(model, optimizer, scaler, x)
    assert [type(p) for p in model.parameters()] == before  # still shards
    if name == "fsdp1-cured":
        scaler = cured(found(diagnosis, "HG214"))["scaler"]
        diagnosis = examined(model, optimizer, scaler, x)
    early = name == "fsdp2-early-optimizer"
    return {
        "codes": [finding.code for finding in diagnosis.findings],
        "got": diagnosis.effective.got if diagnosis.effective else None,
        "scale": None if early else overflow_on_rank_1(model, optimizer, scaler, rank),
    }


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps({name: run(name, rank) for name in NAMES}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
