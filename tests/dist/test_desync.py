"""Differing replicas are found and named, and the run halts; equal replicas never cause it."""

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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg
from halfguard.errors import TrainingHaltedError
from tests.dist.jobs import FEATURES, Engine, batch_of, loss_fn, make, optimizer_of
from tests.support.counting import OpCounter
from tests.support.ranks import Group, Ranks

EVERY = 4


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit in place, like a memory error: no version counter changes."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    bits = local.data.view(-1).view(torch.int32)
    bits[element % len(bits)] ^= 1 << bit if bit < 31 else -(1 << 31)


def flipped(engine: Engine, cases: list[tuple[int, int, int, int, int]]) -> Any:
    """Run once per case (rank, step, parameter, element, bit); return when it was found, and the message."""
    found = []
    for rank, step, number, element, bit in cases:
        model, _ = make(engine)
        optimizer = optimizer_of(model, "sgd")
        guard = hg.Guard(model, optimizer, {"desync": {"every": EVERY}})
        mine, ranks = dist.get_rank(), dist.get_world_size()
        said: Any = None
        for now in range(step + EVERY + 1):
            if (mine, now) == (rank, step):
                flip(list(model.parameters())[number], element, bit)
            try:
                guard.step(loss_fn, batch_of(now, ranks, mine))
            except TrainingHaltedError as error:
                said = (now, error.message)
                break
        found.append(said)
    return found


def names() -> list[str]:
    return [name for name, _ in make("alone")[1].named_parameters()]


def draw(count: int, ranks: int, seed: int) -> list[tuple[int, int, int, int, int]]:
    pick = random.Random(seed).randrange
    return [(pick(ranks), pick(1, 8), pick(6), pick(1000), pick(32)) for _ in range(count)]


@pytest.mark.slow
def test_one_flipped_bit_is_found_within_one_interval(ranks: Group) -> None:
    cases = draw(100, 4, seed=0)
    found = [
        case
        for part in range(0, 100, 25)
        for case in zip(*ranks(4).run(flipped, "ddp", cases[part : part + 25]), strict=True)
    ]
    for (rank, step, number, _, _), answers in zip(cases, found, strict=True):
        at, message = answers[0]
        assert list(answers) == [answers[0]] * 4  # the same on every rank
        assert step <= at < step + EVERY
        assert f"rank {rank} differs in {names()[number]}" in message


@pytest.mark.slow
def test_replicas_of_shards_are_compared(ranks: Group) -> None:
    """HSDP with two replicas: both are named, since it is not known which of them is right."""
    [(_, message)] = ranks(4).run(flipped, "hsdp", [(3, 2, 2, 5, 3)])[0]
    assert "ranks 1, 3 differ in layers.1.weight" in message


class WithBuffers(nn.Module):
    """Statistics that differ between ranks by design, and a table that must not differ."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)
        self.line = nn.Linear(12, 4)
        self.table: torch.Tensor
        self.register_buffer("table", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(self.norm(x)) * self.table


def run_steps(
    guard: hg.Guard, steps: int, before: Callable[[int], None], loss: Any = loss_fn
) -> list[str]:
    """Return the action of each step; a halt comes last, as what differs."""
    said = []
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        before(step)
        try:
            said.append(str(guard.step(loss, batch_of(step, ranks, rank)).action))
        except TrainingHaltedError as error:
            lines = error.message.splitlines()
            return [*said, next(one for one in lines if " differ" in one and "HG616" not in one)]
    return said


def compared(model: nn.Module, optimizer: Any = None, **config: Any) -> hg.Guard:
    """Return a guard that compares the ranks at every step."""
    given = {"precision": "fp32", "desync": {"every": 1}} | config
    return hg.Guard(model, optimizer or optimizer_of(model, "sgd"), given)


def once(rank: int, step: int, act: Callable[[], object]) -> Callable[[int], None]:
    """Return what acts on one rank before one step."""

    def before(now: int) -> None:
        if (dist.get_rank(), now) == (rank, step):
            act()

    return before


def buffers(broadcast: bool, flips: bool) -> list[str]:
    torch.manual_seed(0)
    model = DistributedDataParallel(WithBuffers(), broadcast_buffers=broadcast)
    flip_once = once(1 if flips else -1, 0, lambda: flip(model.module.table, 0, 1))
    return run_steps(compared(model), 20, flip_once)


@pytest.mark.parametrize("broadcast", [True, False])
def test_running_statistics_are_no_difference(ranks: Group, broadcast: bool) -> None:
    assert ranks(2).run(buffers, broadcast, False) == [["apply"] * 20] * 2


def test_a_table_that_nothing_writes_to_is_compared(ranks: Group) -> None:
    assert ranks(2).run(buffers, False, True) == [["ranks 0, 1 differ in table"]] * 2


def scale_of_one() -> list[str]:
    """Change the scale on one of four ranks that hold one shard each."""
    model, _ = make("fsdp2")
    guard = compared(model, optimizer_of(model, "adamw"), precision="fp16-mixed")
    return run_steps(guard, 2, once(2, 1, lambda: guard.scaler._scale.mul_(0.5)))


@pytest.mark.slow
def test_the_scale_is_compared(ranks: Group) -> None:
    assert ranks(4).run(scale_of_one) == [["apply", "rank 2 differs in loss scale"]] * 4


def replicated_dtensors() -> list[str]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Linear(FEATURES, 4)
    for name, parameter in list(model.named_parameters()):
        spread = distribute_tensor(torch.ones_like(parameter).detach(), mesh, [Replicate()])
        setattr(model, name, nn.Parameter(spread))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = DTensor.from_local(torch.ones_like(batch[0]), mesh, [Replicate()])
        return model(inputs).full_tensor().square().mean()

    flips = once(2, 1, lambda: flip(model.weight, 0, 20))
    return run_steps(compared(model), 3, flips, loss)


@pytest.mark.slow
def test_replicated_dtensors_are_compared(ranks: Group) -> None:
    assert ranks(4).run(replicated_dtensors) == [["apply", "rank 2 differs in weight"]] * 4


class Writing(nn.Module):
    """Buffers that are reassigned, created in inference mode, or written to on request."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(FEATURES, 4)
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(FEATURES))
        with torch.inference_mode():
            self.register_buffer("constant", torch.ones(4))
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(300))
        self.register_buffer("table", torch.ones(4))
        self.write = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        if self.write:
            self.seen += 1
        return self.line(x)


def writing(on: list[int]) -> list[str]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Writing(), broadcast_buffers=False)

    def before(step: int) -> None:
        model.module.write = step == 2 and dist.get_rank() in on

    return run_steps(compared(model), 4, before)


@pytest.mark.slow
def test_only_a_buffer_that_one_rank_writes_is_a_difference(ranks: Group) -> None:
    for on in ([], [0, 1, 2, 3]):
        assert ranks(4).run(writing, on) == [["apply"] * 4] * 4
    assert ranks(4).run(writing, [1]) == [["apply", "apply", "rank 1 differs in seen"]] * 4


class SetOnce(nn.Module):
    """A codebook that each rank sets from its first batch, and a table of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(FEATURES, 4)
        self.codebook: torch.Tensor
        self.register_buffer("codebook", torch.zeros(FEATURES))
        self.register_buffer("table", torch.ones(4))
        packed = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        self.register_buffer("packed", packed)
        self.register_buffer("eighths", torch.ones(3).to(torch.float8_e4m3fn))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.codebook.any():
            self.codebook.data.copy_(x.detach().mean(0))
        return self.line(x)


def set_once(event: str) -> list[str]:
    """Let ``event`` happen at step 3 on all ranks; flip a bit of rank 2's table at step 5."""
    torch.manual_seed(0)
    model = DistributedDataParallel(SetOnce(), broadcast_buffers=False)
    weight, bias = model.parameters()
    optimizer = torch.optim.SGD([weight] if event == "more parameters" else [weight, bias], lr=0.1)
    config: dict[str, Any] = {"precision": "fp32", "desync": {"every": 1}}
    config |= {"skip": {"max_consecutive": 1}, "recovery": {"every": 2}}
    guard = hg.Guard(
        model,
        optimizer,
        config if event == "roll back" else config | {"skip": {}, "recovery": None},
    )

    def before(step: int) -> None:
        if step == 3 and event == "more parameters":
            optimizer.add_param_group({"params": [bias]})
        if (dist.get_rank(), step) == (2, 5):
            flip(model.module.get_buffer("table"), 0, 5)

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        bad = event == "roll back" and guard.step_index == 3
        return loss_fn(net, batch) * (float("nan") if bad else 1.0)

    return run_steps(guard, 7, before, loss)


@pytest.mark.slow
@pytest.mark.parametrize("event", ["nothing", "more parameters", "roll back"])
def test_what_is_compared_survives(ranks: Group, event: str) -> None:
    """Private tensors of a rank do not count as a difference, and real differences are still found."""
    third = "roll_back" if event == "roll back" else "apply"
    actions = ["apply"] * 3 + [third, "apply", "rank 2 differs in table"]
    assert ranks(4).run(set_once, event) == [actions] * 4


class Own(nn.Module):
    """A codebook written through ``.data``, a cache that grows on demand, and a table of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(FEATURES, 4)
        self.cache: torch.Tensor
        self.codebook: torch.Tensor
        self.register_buffer("cache", torch.ones(4), persistent=False)
        self.register_buffer("codebook", torch.zeros(FEATURES))
        self.register_buffer("table", torch.ones(4))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.codebook.data.lerp_(x.detach().mean(0), 0.1)
        if dist.get_rank() == 1:
            self.cache = torch.ones(len(self.cache) + 1)
        return self.line(x)


def own_buffers(flips: bool) -> tuple[list[str], float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Own(), broadcast_buffers=False)
    flip_once = once(2 if flips else -1, 2, lambda: flip(model.module.get_buffer("table"), 0, 5))
    return run_steps(compared(model), 5, flip_once), model.module.codebook.sum().item()


@pytest.mark.slow
def test_buffers_that_are_each_ranks_own_are_no_difference(ranks: Group) -> None:
    answers = ranks(4).run(own_buffers, False)
    assert [said for said, _ in answers] == [["apply"] * 5] * 4
    assert len({codebook for _, codebook in answers}) == 4  # they do differ
    found = ["apply", "apply", "rank 2 differs in table"]  # a flipped table beside them
    assert [said for said, _ in ranks(4).run(own_buffers, True)] == [found] * 4


def several_passes(passes: int, accumulate: int) -> tuple[list[str], int]:
    """Run a loop with this many backward passes per step; flip a bit of rank 1 at step 2."""
    model, _ = make("ddp")
    guard = compared(model, precision="fp16-mixed", accumulate=accumulate)
    rank, ranks, said = dist.get_rank(), dist.get_world_size(), []
    for step in range(4):
        if (rank, step) == (1, 2):
            flip(next(model.parameters()), 0, 3)
        for micro in range(passes):
            batch = batch_of(step * passes + micro, ranks, rank)
            with guard.autocast():
                loss = loss_fn(model, batch)
            guard.backward(loss, batch=batch)
        try:
            said.append(str(guard.update().action))
        except TrainingHaltedError:
            return [*said, "halt"], step
    return said, -1


@pytest.mark.parametrize(("passes", "accumulate"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
def test_ranks_are_compared_however_many_passes_a_step_has(
    ranks: Group, passes: int, accumulate: int
) -> None:
    answers = ranks(2).run(several_passes, passes, accumulate)
    assert answers == [(["apply", "apply", "halt"], 2)] * 2


def operations(count: int) -> tuple[int, int]:
    """Return operations and host syncs of one comparison; every second buffer was written to."""
    net = nn.Sequential(*(WithBuffers() for _ in range(count)))
    model = DistributedDataParallel(net)
    stepper = hg.Guard(model, optimizer_of(model, "sgd"))._stepper
    for module in list(net)[1::2]:
        module.get_buffer("table").add_(1)
    with OpCounter() as counter:
        stepper.replicas.fingerprint()
    return int(counter.total), int(counter.host_syncs)


def test_a_comparison_costs_the_same_for_any_number_of_tensors(
    ranks: Group,
) -> None:
    [few], [many] = (set(ranks(2).run(operations, count)) for count in (2, 40))
    assert few == many
    assert few[1] == 0


def frozen() -> list[str]:
    first, last = nn.Linear(FEATURES, 8).requires_grad_(False), nn.Linear(8, 4)
    model = DistributedDataParallel(nn.Sequential(first, last))
    optimizer = torch.optim.SGD(last.parameters(), lr=0.1)
    return run_steps(compared(model, optimizer), 3, once(1, 1, lambda: flip(first.weight, 0, 20)))


@pytest.mark.slow
def test_frozen_parameters_are_compared(ranks: Group) -> None:
    assert ranks(4).run(frozen) == [["apply", "rank 1 differs in 0.weight"]] * 4


def masters() -> list[str]:
    model = DistributedDataParallel(make("alone")[1].half())
    optimizer = hg.MasterWeights(torch.optim.SGD(model.parameters(), lr=0.01))
    guard = compared(model, optimizer, precision="fp16-weights")
    master = optimizer.master_parameters()[0]
    return run_steps(
        guard, 3, once(2, 1, lambda: flip(master, 0, 0))
    )  # too little for the half weight


@pytest.mark.slow
def test_master_weights_are_compared(ranks: Group) -> None:
    assert ranks(4).run(masters) == [["apply", "rank 2 differs in layers.0.weight (master)"]] * 4


def healthy(engine: Engine, steps: int) -> list[str]:
    model, _ = make(engine)
    optimizer = optimizer_of(model, "adamw-fused")
    return run_steps(compared(model, optimizer, precision="fp16-mixed"), steps, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "hsdp"])
def test_no_false_alarm(ranks: Group, engine: Engine) -> None:
    """Compared at every step; ``scripts/soak desync`` does it for 10,000 steps."""
    for said in ranks(4).run(healthy, engine, 200):
        assert len(said) == 200
        assert set(said) <= {"apply", "skip"}  # the first scale may be too large


def incident(folder: str) -> None:
    model, _ = make("ddp")
    guard = hg.Guard(model, optimizer_of(model, "sgd"), {"desync": {"every": 1}}, run_dir=folder)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(3):
        if (rank, step) == (2, 2):
            flip(next(iter(model.parameters())), 0, 4)
        with pytest.raises(TrainingHaltedError) if step == 2 else nullcontext():
            guard.step(loss_fn, batch_of(step, ranks, rank))


@pytest.mark.slow
def test_the_rank_concerned_keeps_an_incident(ranks: Group, tmp_path: Path) -> None:
    ranks(4).run(incident, str(tmp_path))
    assert [path.name for path in (tmp_path / "incidents").iterdir()] == ["000002-r2"]
    assert '"ranks":[2]' in (tmp_path / "steps.jsonl").read_text()


if __name__ == "__main__":
    import sys

    group = Ranks(4)
    said, *_ = group.run(healthy, "ddp", int(sys.argv[1]), timeout=3600)
    group.close()
    print(f"{sys.argv[1]} steps on 4 ranks, compared at each: {said[-1]}")
