"""A step that cannot be repeated on one rank only: all ranks skip it, and nobody hangs."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import halfguard as hg
from tests.support.ranks import Group, Ranks

LAYERS = 4


def change_on_rank_0() -> list[tuple[str, str]]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    config: dict[str, Any] = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}
    guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    rank = dist.get_rank()

    def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = model(batch["x"])
        if rank == 0 and guard.step_index >= 2:  # which the guard does not look at
            batch["weights"].div_(2)
        loss: Tensor = y.float().square().mean()
        return loss * (torch.inf if y.dtype == torch.float16 else 1.0)

    outcomes = [
        guard.step(loss_fn, {"x": torch.randn(8, 4), "weights": torch.ones(8)}) for _ in range(5)
    ]
    weights = [p.detach().sum().item() for p in model.parameters()]
    return [*((str(o.action), str(o.cause)) for o in outcomes), ("weights", str(weights))]


def test_all_ranks_decide_alike(ranks: Group) -> None:
    first, second = ranks(2).run(change_on_rank_0)
    assert first == second
    again = "retry_fp32"
    assert [action for action, _ in first[:5]] == [again, again, "skip", again, again]


def read_other_values_on_rank_0(folder: str) -> list[str]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    config: dict[str, Any] = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}}
    guard = hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), config)
    count = Path(folder, "count")

    def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
        y = model(batch)
        loss: Tensor = y.float().square().mean()
        if dist.get_rank() == 0:
            count.write_text(count.read_text() + "1")
            loss = loss * len(count.read_text())
        return loss * (torch.inf if y.dtype == torch.float16 and guard.step_index > 1 else 1.0)

    actions = [str(guard.step(loss_fn, torch.randn(8, 4)).action) for _ in range(4)]
    weights = [p.detach().sum().item() for p in model.parameters()]
    return [*actions, str(weights)]


def test_a_value_that_differs_on_one_rank_is_skipped_on_all(ranks: Group, tmp_path: Path) -> None:
    (tmp_path / "count").write_text("")
    first, second = ranks(2).run(read_other_values_on_rank_0, str(tmp_path))
    assert first == second
    assert first[:4] == ["apply", "apply", "skip", "skip"]


class Fault(torch.autograd.Function):
    """Raises in the forward or the backward pass of the repeat, if it is armed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, armed: str) -> Tensor:
        ctx.armed = armed
        if armed == "forward":
            raise torch.OutOfMemoryError("not enough memory")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        assert ctx.armed != "backward"
        return gradient, None


def raise_at_random_places(count: int) -> tuple[list[str], list[float]]:
    """Train with an overflow in every second step, whose repeat raises somewhere on one rank."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Layers())
    config = {"scale": {"init": 8.0}, "skip": {"on_nonfinite": "retry_fp32"}, "accumulate": 2}
    guard = hg.Guard(model, torch.optim.AdamW(model.parameters()), config)
    draw, rank, actions = random.Random(0), dist.get_rank(), []

    def loss_fn(model: nn.Module, batch: tuple[Tensor, Any, bool]) -> Tensor:
        x, fault, overflows = batch
        half = torch.is_autocast_enabled("cpu")
        loss: Tensor = model(x, None if half else fault).float().square().mean()
        return loss * (torch.inf if half and overflows else 1.0)

    for _ in range(count):
        fault = draw.randrange(LAYERS), draw.choice(("forward", "backward"))
        where = draw.randrange(dist.get_world_size()), draw.randrange(2)
        for overflows in (True, False):
            given = [fault if overflows and where == (rank, micro) else None for micro in range(2)]
            outcomes = [guard.step(loss_fn, (torch.randn(8, 4), one, overflows)) for one in given]
            actions.append(str(outcomes[-1].action))
    weights = [value.double().sum().item() for value in model.parameters()]
    return actions, [*weights, guard.scaler.get_scale()]


class Layers(nn.Module):
    """Layers with a place in each where the repeat may raise."""

    def __init__(self) -> None:
        super().__init__()
        block = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(LAYERS))
        self.layers = nn.ModuleList(block)

    def forward(self, x: Tensor, fault: tuple[int, str] | None) -> Tensor:
        for index, layer in enumerate(self.layers):
            armed = fault[1] if fault is not None and fault[0] == index else ""
            x = Fault.apply(layer(x), armed)
        return x


@pytest.mark.parametrize("world", [2, 4])
def test_a_repeat_that_raises_on_one_rank_is_skipped_on_all(world: int, ranks: Group) -> None:
    check(ranks(world), 12)


def check(group: Ranks, count: int) -> None:
    answers = group.run(raise_at_random_places, count, timeout=120 + 5 * count)
    assert all(actions == ["skip", "apply"] * count for actions, _ in answers)
    assert all(weights == answers[0][1] for _, weights in answers)


def run_out_of_memory(wrapped: str, memory: str, folder: Path) -> tuple[list[str], list[float]]:
    """Repeat two steps in FP32; the first pass of the first runs out of memory, with DDP on rank 1 only."""
    torch.manual_seed(0)
    model: nn.Module = Layers()
    if wrapped == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        fully_shard(model)
    skip = {"on_nonfinite": "retry_fp32", "retry_memory": memory}
    config = {"scale": {"init": 8.0}, "skip": skip, "accumulate": 2}
    guard = hg.Guard(model, torch.optim.AdamW(model.parameters()), config)
    rank, passes = dist.get_rank(), folder / f"{wrapped} {memory} {dist.get_rank()}"

    def loss_fn(model: nn.Module, batch: tuple[Tensor, bool]) -> Tensor:
        x, overflows = batch
        half = torch.is_autocast_enabled("cpu")
        loss: Tensor = model(x, None).float().square().mean()
        if not half:
            with passes.open("ab") as file:  # which no repeat puts back
                first = file.write(b"x") == file.tell()
            if first and memory == "full" and (rank == 1 or wrapped == "fsdp2"):
                raise torch.OutOfMemoryError("no room")
        return loss * (torch.inf if half and overflows else 1.0)

    torch.manual_seed(rank)
    data = [(torch.randn(8, 4), step in (1, 2)) for step in range(4) for _ in range(2)]
    actions = [str(guard.step(loss_fn, batch).action) for batch in data]
    weights = [guard.scaler.get_scale()]
    for value in model.state_dict().values():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        weights.append(full.double().sum().item())
    return actions[1::2], weights


@pytest.mark.parametrize("wrapped", ["ddp", "fsdp2"])
def test_ranks_that_run_out_of_memory_repeat_together(
    wrapped: str, ranks: Group, tmp_path: Path
) -> None:
    group = ranks(2)
    undisturbed = group.run(run_out_of_memory, wrapped, "half", tmp_path)
    answers = group.run(run_out_of_memory, wrapped, "full", tmp_path)
    assert [actions for actions, _ in answers] == [["apply", *["retry_fp32"] * 2, "apply"]] * 2
    assert answers == undisturbed


if __name__ == "__main__":  # scripts/soak repeats
    faults = int(sys.argv[1]) if sys.argv[1:] else 200
    for size in (2, 4):
        check(Ranks(size), faults)
        print(f"{size} ranks, {faults} repeats raised on one of them: no hang, ranks equal")
