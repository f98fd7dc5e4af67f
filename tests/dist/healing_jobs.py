"""A job on several ranks in which one block overflows in half, on one rank only, in every third batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import halfguard as hg
from halfguard.dist.wrapping import unwrap_model
from halfguard.errors import HalfguardError
from halfguard.numerics.tensor_rows import local_tensor
from halfguard.precision.islands import is_island
from halfguard.records.plan import Island, PrecisionPlan
from halfguard.trials.applied_islands import AppliedIslands
from halfguard.trials.line_islands import LineIslands
from tests.dist.jobs import everything

Engine = Literal["ddp", "fsdp2"]
WIDTH = 16
CONFIG: dict[str, Any] = {
    "skip": {"on_nonfinite": "retry_fp32"},
    "heal": {},
    "desync": {"every": 2},
    "scale": {"init": 1024.0},
}


class Square(nn.Module):
    """A share of squares: inf / inf is NaN once they leave the range of half."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        squares = (x * x).sum(-1, keepdim=True)
        return x * self.gain * (squares / (squares + 1.0))


class Block(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.up, self.square, self.down = nn.Linear(WIDTH, WIDTH), Square(), nn.Linear(WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpointed:
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        return self.down(self.square(self.up(x)) / WIDTH)


class Net(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(WIDTH, WIDTH), Block(checkpointed)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.first(x))))


def make(engine: Engine, seed: int = 0, *, checkpointed: bool = False) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = Net(checkpointed)
    if engine == "ddp":
        return DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.float16, torch.float32)
    fully_shard(net.block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    return net


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, WIDTH, generator=generator)
    y = x[:, :4].argmax(1)
    if step % 3 == 2 and rank == 1:
        x[::2] *= 700.0
    return x, y


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)


def islands(model: nn.Module) -> list[str]:
    return [name.removeprefix("module.") for name, m in model.named_modules() if is_island(m)]


def heal(engine: Engine, folder: str, steps: int, checkpointed: bool) -> Any:
    """Train; return actions, islands, the modules of the plan, the guard's memory, weights and moments."""
    model = make(engine, checkpointed=checkpointed)
    chosen = optimizer(model)
    guard = hg.Guard(model, chosen, CONFIG, run_dir=folder)
    rank = dist.get_rank()
    actions = [str(guard.step(loss_fn, batch(step, rank)).action) for step in range(steps)]
    memory = guard.state_dict()["healing"]
    guard.close()
    dist.barrier()
    path = Path(folder, "plan.yaml")
    plan = PrecisionPlan.load(path).modules if path.exists() else ()
    return actions, islands(model), plan, memory, everything(model, chosen)


def stop_and_resume(engine: Engine, steps: int, stop: int) -> tuple[Any, Any]:
    """Return the end of a run, and that of one which is stopped and loaded into another model."""
    rank = dist.get_rank()
    whole = make(engine)
    chosen = optimizer(whole)
    guard = hg.Guard(whole, chosen, CONFIG)
    saved: Any = None
    for step in range(steps):
        if step == stop:
            saved = [_copy(part.state_dict()) for part in (whole, chosen)], guard.state_dict()
        guard.step(loss_fn, batch(step, rank))
    other = make(engine, seed=1)
    its_own = optimizer(other)
    resumed = hg.Guard(other, its_own, CONFIG)
    if engine == "fsdp2":  # an optimizer has states to load into once it has stepped
        resumed.step(loss_fn, batch(0, rank))
    other.load_state_dict(saved[0][0])
    its_own.load_state_dict(saved[0][1])
    resumed.load_state_dict(saved[1])
    for step in range(stop, steps):
        resumed.step(loss_fn, batch(step, rank))
    return (everything(whole, chosen), islands(whole)), (everything(other, its_own), islands(other))


def _copy(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_copy(value) for value in state]
    return state.detach().clone() if isinstance(state, Tensor) else state


def nest(engine: Engine) -> tuple[Any, Any]:
    """Return a step's gradients with an island whose inner one was taken back, and with one made at once."""
    ends = []
    for history in ([["block.square"], ["block.square", ""], [""]], [[""]]):
        model = make(engine)
        made = AppliedIslands(unwrap_model(model), (), LineIslands())
        for paths in history:
            made.set([Island(module=path) for path in paths])
        with torch.autocast("cpu", torch.float16):
            loss = loss_fn(model, batch(2, dist.get_rank()))
        loss.backward()
        grads = {n: local_tensor(p.grad) for n, p in model.named_parameters() if p.grad is not None}
        ends.append({"loss": loss.detach(), **grads})
    return ends[0], ends[1]


def refuse_half_weights() -> str:
    """Return the error of a guard that shall heal half weights under DDP."""
    model = DistributedDataParallel(Net().half())
    try:
        hg.Guard(
            model,
            hg.MasterWeights(torch.optim.SGD(model.parameters(), lr=0.1)),
            {"precision": "fp16-weights", "heal": {}},
        )
    except hg.errors.UsageError as error:
        return str(error)
    return ""


class RMSNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(WIDTH, WIDTH), RMSNorm(), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)))


def alarm(engine: Engine, on: int, accumulate: int) -> Any:
    """Let one rank alone audit a loud batch; return its findings, the islands, and the weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: nn.Module = Normed()
    if engine == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.float16, torch.float32))
    chosen = optimizer(model)
    guard = hg.Guard(model, chosen, CONFIG | {"accumulate": accumulate})
    rank = dist.get_rank()
    found = 0
    for step in range(6):
        if step == 2:
            found = len(guard.audit(loss_fn, batch(2, 1 if rank == on else 0)).findings)
        for micro in range(accumulate):
            guard.step(loss_fn, batch(3 * micro, rank))
    return found, islands(model), everything(model, chosen)


def start_in(folder: str) -> str:
    """Make a guard in a folder; return the error that it raised."""
    model = nn.Linear(2, 2)
    try:
        hg.Guard(model, torch.optim.SGD(model.parameters()), CONFIG, run_dir=folder)
    except HalfguardError as error:
        return str(error)
    return ""
