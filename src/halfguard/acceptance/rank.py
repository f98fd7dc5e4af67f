"""One rank of the lockstep check: ``python -m halfguard.acceptance.rank BACKEND FOLDER RANK RANKS``.

It trains a guarded replica in which one rank at a time has a fault, and a bare replica that leaves those
steps out on all ranks. What happened is written to ``FOLDER/rankN.json``.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from halfguard.acceptance.comparing import deterministic, differences, state_of
from halfguard.acceptance.jobs import (
    FUSED,
    MAX_NORM,
    OPTIMIZERS,
    Batch,
    bare_step,
    loss_fn,
    make_batch,
    make_model,
)
from halfguard.dist.collectives import process_group
from halfguard.guard.guard import Guard
from halfguard.records import Action, Cause, write_atomically

STEPS, SCALE, SECONDS = 10, 64.0, 60.0
# Step: the rank with the fault, what is changed in its batch, and the cause that all ranks must name.
FAULTS: dict[int, tuple[int, str, float, Cause]] = {
    3: (1, "x", math.nan, Cause.BAD_BATCH),
    6: (0, "gradient", 1e6, Cause.GRADIENT_OVERFLOW),
}


def main(backend: str, folder: Path, rank: int, ranks: int) -> None:
    """Train both replicas and write the answer of this rank."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with process_group(backend, folder / "meeting", rank, ranks, seconds=SECONDS), deterministic():
        found, actions = _guarded(device, rank)
        by_hand = _bare(device, rank)
    names = {step: f"{cause.value} on rank {bad}" for step, (bad, _, _, cause) in FAULTS.items()}
    answer = {
        "faults": {names[step]: actions[step] for step in FAULTS},
        "expected": {names[step]: [Action.SKIP.value, FAULTS[step][3].value] for step in FAULTS},
        "digest": _digest(found),
        "difference": differences(by_hand, found),
        "steps": STEPS,
    }
    write_atomically(folder / f"rank{rank}.json", json.dumps(answer))


def _replica(device: torch.device) -> nn.Module:
    model = make_model("transformer", device)
    return DistributedDataParallel(model, [device] if device.type == "cuda" else None)


def _batch(step: int, rank: int, device: torch.device) -> Batch:
    torch.manual_seed(1000 + 10 * step + rank)
    batch = make_batch(100 * step + rank, device)
    bad, part, value, _ = FAULTS.get(step, (-1, "x", 0.0, None))
    if bad == rank:
        place = batch["x"][1] if part == "x" else batch[part]
        place.fill_(value)
    return batch


def _guarded(device: torch.device, rank: int) -> tuple[dict[str, Any], list[list[str]]]:
    model = _replica(device)
    optimizer = OPTIMIZERS[FUSED](model.parameters())
    config = {"clip": {"max_norm": MAX_NORM}, "scale": {"init": SCALE}, "desync": {"every": 2}}
    guard = Guard(model, optimizer, config)
    outcomes = [guard.step(loss_fn, _batch(step, rank, device)) for step in range(STEPS)]
    guard.close()
    actions = [[str(outcome.action), str(outcome.cause)] for outcome in outcomes]
    return state_of(model, [optimizer], guard.scaler.get_scale()), actions


def _bare(device: torch.device, rank: int) -> dict[str, Any]:
    """Train the replica that never saw the steps with faults."""
    model = _replica(device)
    optimizer = OPTIMIZERS[FUSED](model.parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE)
    for step in range(STEPS):
        if step not in FAULTS:
            bare_step(model, optimizer, scaler, [_batch(step, rank, device)])
        elif FAULTS[step][3] is Cause.GRADIENT_OVERFLOW:
            scaler.update(scaler.get_scale() / 2)
    return state_of(model, [optimizer], scaler.get_scale())


def _digest(state: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for value in state.values():
        if isinstance(value, Tensor):
            digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
