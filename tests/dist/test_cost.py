"""What agreement costs: one collective of at most 64 bytes a step, for 2 ranks and for 16,384.

Counted in torch's fake process group, in a process of its own: ranks that do not exist answer at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys, tracemalloc
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
import halfguard as hg
from halfguard.guard.desync import Replicas
from tests.dist.jobs import batch_of, loss_fn, make, optimizer_of

engine, ranks, guarded, clip, accumulate = sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:6])
dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())

class Collectives(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in str(func):
            tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            flat = [t for t in tensors if isinstance(t, torch.Tensor)]
            self.seen.append((str(func), sum(t.numel() * t.element_size() for t in flat)))
        return func(*args, **(kwargs or {}))

def reduce(state, bucket):  # DDP's own reduction asks the fake group for a result that it does not have
    dist.all_reduce(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(bucket.buffer() / ranks)
    return future

real = Replicas.fingerprint
Replicas.fingerprint = lambda self: real(self) * 0  # nobody is there to cancel it

model, _ = make(engine)
if engine == "ddp":
    model.register_comm_hook(None, reduce)
optimizer = optimizer_of(model, "adamw-fused")
config = {"accumulate": accumulate, "desync": {"every": 2}, "scale": {"init": 2.0}}
if clip:
    config["clip"] = {"max_norm": 1.0}
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
guard = hg.Guard(model, optimizer, config) if guarded else None
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)

def step(number):
    if guarded:
        for index in range(accumulate):
            guard.step(loss_fn, batch_of(number, 1, 0))
        return
    for index in range(accumulate):
        if engine == "ddp":
            model.require_backward_grad_sync = index == accumulate - 1
        else:
            model.set_requires_gradient_sync(index == accumulate - 1)
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch_of(number, 1, 0))
        scaler.scale(loss / accumulate).backward()
    scaler.unscale_(optimizer)
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()

steps = []
for number in range(8):
    if number == 4:
        held = tracemalloc.get_traced_memory()[0] - before
    with Collectives() as counter:
        step(number)
    steps.append(counter.seen)
print(json.dumps({"steps": steps[4:], "held": held}))
"""


def counted(
    engine: str, ranks: int, *, guarded: bool, clip: bool = False, accumulate: int = 1
) -> Any:
    arguments = [engine, str(ranks), str(int(guarded)), str(int(clip)), str(accumulate)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def ours(engine: str, ranks: int, **kind: Any) -> list[list[int]]:
    """Bytes of the collectives that a guarded step makes and a bare one does not."""
    bare = counted(engine, ranks, guarded=False, **kind)["steps"]
    guarded = counted(engine, ranks, guarded=True, **kind)["steps"]
    extra = []
    for with_us, without in zip(guarded, bare, strict=True):
        rest = [tuple(call) for call in with_us]
        for call in without:
            rest.remove(tuple(call))  # everything that the bare loop sends is still sent, once
        extra.append([size for _, size in rest])
    return extra


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_one_small_collective_a_step(engine: str, clip: bool, accumulate: int) -> None:
    extra = ours(engine, 2, clip=clip, accumulate=accumulate)
    assert all(len(step) == 1 for step in extra)
    assert max(size for [size] in extra) <= 64


def test_as_many_for_any_number_of_ranks() -> None:
    few, some, many = (ours("ddp", ranks) for ranks in (2, 128, 16384))
    assert few == some == many == [[24], [8], [24], [8]]  # the checksum rides along at every second


def test_memory_does_not_grow_with_ranks() -> None:
    few, many = (counted("ddp", ranks, guarded=True)["held"] for ranks in (2, 16384))
    assert abs(many - few) < 0.02 * few + 2048
