"""Count the collectives of bare and guarded steps in torch's fake process group, for ``test_cost``.

``python -m tests.dist.count_collectives ENGINE RANKS`` prints them as JSON, by clipping and accumulation. In
the fake group a collective returns at once, without data from other ranks.
"""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import halfguard as hg
from halfguard.guard.desync import Replicas
from tests.dist.jobs import Engine, batch_of, loss_fn, make, optimizer_of, synchronised

Calls = list[tuple[str, int]]


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every collective with the number of bytes that this rank sends."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Calls = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if "c10d" in str(func):
            given = args[0] if isinstance(args[0], list | tuple) else [args[0]]
            tensors = [tensor for tensor in given if isinstance(tensor, torch.Tensor)]
            self.seen.append((str(func), sum(t.numel() * t.element_size() for t in tensors)))
        return func(*args, **(kwargs or {}))


def reduce(_state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its own
    """Replace DDP's own reduction, which waits for a result that the fake group does not have."""
    dist.all_reduce(bucket.buffer())
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer() / dist.get_world_size())
    return future


def bare(
    model: nn.Module, engine: Engine, clip: float | None, accumulate: int
) -> Callable[[int], None]:
    """Return a step of the bare loop."""
    optimizer, scaler = optimizer_of(model, "adamw-fused"), torch.amp.GradScaler("cpu", 2.0)

    def step(number: int) -> None:
        for index in range(accumulate):
            with synchronised(model, engine, index == accumulate - 1):
                with torch.autocast("cpu", torch.float16):
                    loss = loss_fn(model, batch_of(number, 1, 0))
                scaler.scale(loss / accumulate).backward()
        scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def guarded(model: nn.Module, clip: float | None, accumulate: int) -> Callable[[int], None]:
    """Return a guarded step; replicas are compared at every second one."""
    config: dict[str, Any] = {
        "accumulate": accumulate,
        "desync": {"every": 2},
        "scale": {"init": 2.0},
    }
    if clip:
        config["clip"] = {"max_norm": clip}
    guard = hg.Guard(model, optimizer_of(model, "adamw-fused"), config)

    def step(number: int) -> None:
        for _ in range(accumulate):
            guard.step(loss_fn, batch_of(number, 1, 0))

    return step


def model_of(engine: Engine) -> nn.Module:
    model, _ = make(engine)
    if engine == "ddp":
        model.register_comm_hook(None, reduce)  # type: ignore[operator]
    return model


def collectives(step: Callable[[int], None]) -> list[Calls]:
    """Return the collectives of four steps, after four steps of warm-up."""
    for number in range(4):
        step(number)
    steps = []
    for number in range(4, 8):
        with Collectives() as counter:
            step(number)
        steps.append(counter.seen)
    return steps


def main(engine: Engine, ranks: int) -> None:
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    real = Replicas.fingerprint
    Replicas.fingerprint = lambda self: real(self) * 0  # type: ignore[method-assign]  # nobody cancels it
    found = {}
    for clip in (None, 1.0):
        for accumulate in (1, 3):
            alone = collectives(bare(model_of(engine), engine, clip, accumulate))
            model = model_of(engine)
            tracemalloc.start()
            step = guarded(model, clip, accumulate)
            with_us = collectives(step)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            found[f"{clip} {accumulate}"] = {"bare": alone, "guarded": with_us, "held": held}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))  # type: ignore[arg-type]
