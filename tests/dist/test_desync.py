"""Replicas that drift apart are found, named, and halted or healed; healthy ones never are."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg
from halfguard.errors import TrainingHaltedError
from tests.dist.jobs import Engine, batch_of, full_state, loss_fn, make, optimizer_of
from tests.support.ranks import Ranks

EVERY = 4


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit where it lies, as a particle would: no version counter moves."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    bits = local.data.view(-1).view(torch.int32)
    bits[element % len(bits)] ^= 1 << bit if bit < 31 else -(1 << 31)


def flipped(engine: Engine, cases: list[tuple[int, int, int, int, int]], action: str) -> Any:
    """One short run a case: (rank, step, parameter, element, bit); when it was found and what was said."""
    found = []
    for rank, step, number, element, bit in cases:
        model, _ = make(engine)
        optimizer = optimizer_of(model, "sgd")
        config = {"desync": {"every": EVERY, "action": action}}
        guard = hg.Guard(model, optimizer, config)
        mine, ranks = dist.get_rank(), dist.get_world_size()
        said: Any = None
        for now in range(step + EVERY + 1):
            if (mine, now) == (rank, step):
                flip(list(model.parameters())[number], element, bit)
            try:
                outcome = guard.step(loss_fn, batch_of(now, ranks, mine))
            except TrainingHaltedError as error:
                said = (now, "halt", error.message)
                break
            if outcome.cause == "desync":
                said = (now, str(outcome.action), outcome.ranks, outcome.culprits)
        found.append((said, full_state(model)))
    return found


def names(engine: Engine) -> list[str]:
    return [name for name, _ in make("alone")[1].named_parameters()]


def draw(count: int, ranks: int, seed: int) -> list[tuple[int, int, int, int, int]]:
    chance = random.Random(seed)
    return [
        (
            chance.randrange(ranks),
            chance.randrange(1, 8),
            chance.randrange(6),
            chance.randrange(1000),
            chance.randrange(32),
        )
        for _ in range(count)
    ]


def test_one_flipped_bit_is_found_within_one_interval(ranks: Callable[[int], Ranks]) -> None:
    cases = draw(100, 4, seed=0)
    found = [
        case
        for part in range(0, 100, 25)
        for case in zip(*ranks(4).run(flipped, "ddp", cases[part : part + 25], "halt"), strict=True)
    ]
    for (rank, step, number, _, _), answers in zip(cases, found, strict=True):
        at, action, message = answers[0][0]
        assert [answer[0] for answer in answers] == [answers[0][0]] * 4  # the same on every rank
        assert action == "halt"
        assert step <= at < step + EVERY
        assert f"rank {rank} differs in {names('ddp')[number]}" in message


def test_the_majority_heals_the_one(ranks: Callable[[int], Ranks]) -> None:
    cases = draw(10, 4, seed=1)
    found = list(zip(*ranks(4).run(flipped, "ddp", cases, "resync"), strict=True))
    for (rank, _, number, _, _), answers in zip(cases, found, strict=True):
        _, action, who, what = answers[0][0]
        assert (action, who, what) == ("skip", (rank,), (names("ddp")[number],))
        first = answers[0][1]
        for _, weights in answers[1:]:
            assert all(torch.equal(weights[name], first[name]) for name in first)


def test_two_ranks_have_no_majority(ranks: Callable[[int], Ranks]) -> None:
    [(said, _)] = ranks(2).run(flipped, "ddp", [(1, 2, 0, 5, 3)], "resync")[0]
    assert said[1] == "halt"
    assert "ranks 0, 1 differ in layers.0.weight" in said[2]


def test_replicas_of_shards_are_compared(ranks: Callable[[int], Ranks]) -> None:
    """HSDP with two replicas: the pair is named, though nobody can say who of the two is right."""
    [(said, _)] = ranks(4).run(flipped, "hsdp", [(3, 2, 2, 5, 3)], "halt")[0]
    assert said[1] == "halt"
    assert "ranks 1, 3 differ in layers.1.weight" in said[2]


class WithBuffers(nn.Module):
    """Statistics that differ between ranks by design, and a table that must not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)
        self.line = nn.Linear(12, 4)
        self.table: torch.Tensor
        self.register_buffer("table", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.line(self.norm(x)) * self.table
        return scores


def buffers(broadcast: bool, steps: int, poison: bool) -> list[str]:
    torch.manual_seed(0)
    model = DistributedDataParallel(WithBuffers(), broadcast_buffers=broadcast)
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"desync": {"every": 1}})
    if poison and dist.get_rank() == 1:
        flip(model.module.table, 0, 1)
    said = []
    for step in range(steps):
        try:
            guard.step(loss_fn, batch_of(step, dist.get_world_size(), dist.get_rank()))
        except TrainingHaltedError as error:
            said.append(error.message)
            break
    return said


@pytest.mark.parametrize("broadcast", [True, False])
def test_running_statistics_are_no_difference(
    ranks: Callable[[int], Ranks], broadcast: bool
) -> None:
    assert ranks(2).run(buffers, broadcast, 20, False) == [[], []]


def test_a_table_that_nothing_writes_to_is_compared(ranks: Callable[[int], Ranks]) -> None:
    said = ranks(2).run(buffers, False, 20, True)
    assert all("differ in table" in message for [message] in said)


def healthy(engine: Engine, steps: int) -> int:
    model, _ = make(engine)
    guard = hg.Guard(model, optimizer_of(model, "adamw-fused"), {"desync": {"every": 1}})
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return sum(
        guard.step(loss_fn, batch_of(s, ranks, rank)).cause == "desync" for s in range(steps)
    )


@pytest.mark.parametrize("engine", ["ddp", "hsdp"])
def test_no_false_alarm(ranks: Callable[[int], Ranks], engine: Engine) -> None:
    """Compared at every step; ``scripts/soak desync`` does it for 10,000 steps."""
    assert ranks(4).run(healthy, engine, 200) == [0] * 4


def incident(folder: str) -> None:
    model, _ = make("ddp")
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"desync": {"every": 1}}, run_dir=folder)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(3):
        if (rank, step) == (2, 2):
            flip(next(iter(model.parameters())), 0, 4)
        with pytest.raises(TrainingHaltedError) if step == 2 else nullcontext():
            guard.step(loss_fn, batch_of(step, ranks, rank))


def test_the_rank_concerned_keeps_an_incident(
    ranks: Callable[[int], Ranks], tmp_path: Path
) -> None:
    ranks(4).run(incident, str(tmp_path))
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == ["000002-r2"]
    assert '"ranks":[2]' in (tmp_path / "steps.jsonl").read_text()


if __name__ == "__main__":
    import sys

    group = Ranks(4)
    alarms = group.run(healthy, "ddp", int(sys.argv[1]), timeout=3600)
    group.close()
    print(f"{sys.argv[1]} steps on 4 ranks, compared at each: {alarms[0]} alarms")
