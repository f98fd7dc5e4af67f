"""Small training jobs that run on every rank of a group, and in one process for comparison.

Each rank learns from its own part of every batch. A fault depends only on rank and step, so the same faults
can be planted in a single process that sees the whole batch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import halfguard as hg

Engine = Literal["alone", "ddp", "fsdp2", "hsdp"]
FEATURES, PER_RANK = 12, 4


class Poison(torch.autograd.Function):
    """The identity; some rows of its value or of its gradient are multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: slice, value: float, gradient: float) -> Tensor:
        ctx.rows, ctx.gradient = rows, gradient
        result = x.clone()
        result[rows] *= value
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        grad = grad.clone()
        grad[ctx.rows] *= ctx.gradient
        return grad, None, None, None


@dataclass
class Plan:
    """The fault to plant: factors on some rows of one layer's output or gradient."""

    layer: int = -1
    rows: slice = field(default_factory=lambda: slice(0))
    value: float = 1.0
    gradient: float = 1.0
    in_half_only: bool = True


class Net(nn.Module):
    """Three layers without batch statistics, so that a batch can be divided among ranks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = [FEATURES, width, width, 4]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.plan = Plan()

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x)
            x = torch.tanh(x) if index < 2 else x
            if index == self.plan.layer:
                half = torch.is_autocast_enabled("cpu")
                if half or not self.plan.in_half_only:
                    x = Poison.apply(x, self.plan.rows, self.plan.value, self.plan.gradient)
        return x


def make(engine: Engine, seed: int = 0, mesh: tuple[int, ...] = ()) -> tuple[nn.Module, Net]:
    """Return a model wrapped by the engine, and the same model without the wrapper."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net()
    if engine == "ddp":
        return DistributedDataParallel(net), net
    if engine in {"fsdp2", "hsdp"}:
        shape = mesh or (
            (dist.get_world_size(),) if engine == "fsdp2" else (2, dist.get_world_size() // 2)
        )
        names = ("shard",) if len(shape) == 1 else ("replicate", "shard")
        device_mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        policy = MixedPrecisionPolicy(torch.float16, torch.float32)
        for layer in net.layers:
            fully_shard(layer, mesh=device_mesh, mp_policy=policy)
        fully_shard(net, mesh=device_mesh, mp_policy=policy)
    return net, net


def optimizer_of(model: nn.Module, name: str) -> Optimizer:
    if name == "sgd":
        return SGD(model.parameters(), lr=0.1, momentum=0.9)
    # With a large eps, a difference in the last bit of a tiny gradient does not change a whole step.
    return AdamW(model.parameters(), lr=1e-2, eps=1e-3, fused=name == "adamw-fused")


def batch_of(step: int, ranks: int, rank: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the batch of a step for ``ranks`` ranks; with ``rank``, only its part."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(ranks * PER_RANK, FEATURES, generator=generator)
    y = x[:, :4].argmax(1)
    if rank is None:
        return x, y
    part = slice(rank * PER_RANK, (rank + 1) * PER_RANK)
    return x[part], y[part]


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x).float(), y)


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the full weights, gathered from all ranks."""
    return {
        name.removeprefix("module."): (p.full_tensor() if isinstance(p, DTensor) else p)
        .detach()
        .clone()
        for name, p in model.named_parameters()
    }


def healthy(
    engine: Engine, guarded: bool, optimizer: str, clip: float | None, accumulate: int, steps: int
) -> Any:
    """Run without faults, guarded or as in torch's documentation; return final weights and scale."""
    model, _ = make(engine)
    chosen = optimizer_of(model, optimizer)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if guarded:
        config: dict[str, Any] = {"accumulate": accumulate, "desync": {"every": 2}}
        if clip:
            config["clip"] = {"max_norm": clip}
        guard = hg.Guard(model, chosen, config)
        outcomes = [
            guard.step(loss_fn, batch_of(s, ranks, rank)) for s in range(steps * accumulate)
        ]
        assert all(o.applied for o in outcomes[accumulate - 1 :: accumulate]), outcomes
        return full_state(model), float(guard.scaler.get_scale())
    scaler = torch.amp.GradScaler("cpu")
    for step in range(steps):
        for index in range(accumulate):
            batch = batch_of(step * accumulate + index, ranks, rank)
            with synchronised(model, engine, index == accumulate - 1):
                with torch.autocast("cpu", torch.float16):
                    loss = loss_fn(model, batch)
                scaler.scale(loss / accumulate if accumulate > 1 else loss).backward()
        scaler.unscale_(chosen)
        if clip:
            clip_gradients(model, clip)
        scaler.step(chosen)
        scaler.update()
        chosen.zero_grad()
    return full_state(model), float(scaler.get_scale())


def clip_gradients(model: nn.Module, clip: float) -> None:
    parameters = list(model.parameters())
    if not torch.__version__.startswith("2.9."):
        nn.utils.clip_grad_norm_(parameters, clip)
        return
    # torch 2.9 adds its epsilon to each rank's part of a norm, and so does not divide by the norm.
    total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    total = total.full_tensor() if isinstance(total, DTensor) else total
    nn.utils.clip_grads_with_norm_(parameters, clip, total)


def synchronised(model: Any, engine: Engine, last: bool) -> AbstractContextManager[Any]:
    """Reduce gradients with the last micro-batch only, as the documentation of each engine describes."""
    if engine == "ddp" and not last:
        return model.no_sync()
    if engine in {"fsdp2", "hsdp"}:
        model.set_requires_gradient_sync(last)
    return nullcontext()


RECOVERY = {"store": "disk", "every": 4}


def snapshotted(engine: Engine, folder: str, steps: int) -> tuple[int, Any]:
    """Train until there is a good snapshot; return its step, and the weights and moments of that step."""
    model, _ = make(engine)
    optimizer = optimizer_of(model, "adamw")
    guard = hg.Guard(model, optimizer, {"recovery": RECOVERY}, run_dir=folder)
    states = []
    for step in range(steps):
        guard.step(loss_fn, batch_of(step, 4, None if engine == "alone" else dist.get_rank()))
        states.append(everything(model, optimizer))
    good = guard._recovery._snapshots.good_step if guard._recovery else None
    assert good
    return good, states[good - 1]


def resumed(engine: Engine, folder: str) -> tuple[int, Any]:
    """Load the last good snapshot into a new model; return the step, and its weights and moments."""
    model, _ = make(engine, seed=1)
    optimizer = optimizer_of(model, "adamw")
    guard = hg.Guard(model, optimizer, {"recovery": RECOVERY}, run_dir=folder)
    assert guard.resume()
    found = guard.step_index, everything(model, optimizer)
    assert guard.step(loss_fn, batch_of(99, 4, 0)).applied  # and training continues
    return found


def everything(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the full weights and moments, gathered from all ranks."""
    moments = {
        f"{number}.{key}": value
        for number, parameter in enumerate(model.parameters())
        for key, value in optimizer.state[parameter].items()
    }
    return full_state(model) | {
        name: (t.full_tensor() if isinstance(t, DTensor) else t).clone()
        for name, t in moments.items()
    }


def workload(seed: int) -> hg.Workload:
    """Return the job for a single process, for ``halfguard replay``."""
    model, _ = make("alone", seed)
    batches = [batch_of(step, 2, 1) for step in range(8)]
    return hg.Workload(model, loss_fn, batches, optimizer_of(model, "sgd"))


def overflowing(engine: Engine, folder: str) -> None:
    """Run three steps; at the last one, the inputs of rank 1 leave the range of half."""
    model, _ = make(engine)
    entry = "tests.dist.jobs:workload"
    guard = hg.Guard(model, optimizer_of(model, "sgd"), run_dir=folder, entry=entry)
    rank = dist.get_rank()
    for step in range(3):
        inputs, labels = batch_of(step, 2, rank)
        guard.step(loss_fn, (inputs * 1e6 if (rank, step) == (1, 2) else inputs, labels))
    guard.close()
