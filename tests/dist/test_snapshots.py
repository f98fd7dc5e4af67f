"""A snapshot of four ranks is read by four, by two and by one."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

import halfguard as hg
from halfguard.errors import UsageError
from halfguard.guard.recovery import snapshot_folder
from tests.dist import jobs
from tests.support.models import differences
from tests.support.ranks import Group


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "hsdp"])
def test_another_number_of_ranks_reads_it(
    ranks: Group, engine: jobs.Engine, tmp_path: Path
) -> None:
    (step, kept), *others = ranks(4).run(jobs.snapshotted, engine, str(tmp_path), 11)
    assert step == 8
    assert all(not differences(kept, other) for _, other in others)
    smaller: jobs.Engine = "ddp" if engine == "ddp" else "fsdp2"
    copies = {n: tmp_path / str(n) for n in (4, 2, 1)}
    for folder in copies.values():
        (folder / "snapshots").mkdir(parents=True)
        for file in (tmp_path / "snapshots" / f"{step:09d}").rglob("*"):
            target = folder / "snapshots" / f"{step:09d}" / file.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    found = [
        *ranks(4).run(jobs.resumed, engine, str(copies[4])),
        *ranks(2).run(jobs.resumed, smaller, str(copies[2])),
        jobs.resumed("alone", str(copies[1])),
    ]
    assert [differences(kept, state) for at, state in found if at == step] == [[]] * 7


def test_nothing_is_pickled(ranks: Group, tmp_path: Path) -> None:
    ranks(2).run(jobs.snapshotted, "fsdp2", str(tmp_path), 11)
    kinds = {path.suffix for path in (tmp_path / "snapshots").rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json", ""}  # the manifest of a good snapshot has no suffix


def full_disk(folder: str, full_on: int, steps: int) -> tuple[int, int | None]:
    """Train while one rank cannot write its part of a snapshot."""
    module: Any = snapshot_folder
    real = module.write_atomically

    def write(path: Path, content: Any) -> None:
        if dist.get_rank() == full_on:
            raise OSError(28, "No space left on device")
        real(path, content)

    module.write_atomically = write
    try:
        model, _ = jobs.make("ddp")
        optimizer = jobs.optimizer_of(model, "sgd")
        guard = hg.Guard(model, optimizer, {"recovery": jobs.RECOVERY}, run_dir=folder)
        for step in range(steps):
            guard.step(jobs.loss_fn, jobs.batch_of(step, 2, dist.get_rank()))
        return guard.close().applied, guard._recovery._snapshots.good_step
    finally:
        module.write_atomically = real


@pytest.mark.parametrize("full_on", [0, 1])
def test_a_full_disk_on_one_rank_stops_nobody(ranks: Group, full_on: int, tmp_path: Path) -> None:
    assert ranks(2).run(full_disk, str(tmp_path), full_on, 11) == [(11, None)] * 2
    assert not list((tmp_path / "snapshots").iterdir())


def no_room_for_tensors(folder: str, full_on: int) -> list[tuple[int | None, list[str]]]:
    """Train while torch cannot write all tensors of a rank, then while it can; return the snapshots found."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(jobs.FEATURES, 2**16), nn.Linear(2**16, 4))
    model = DistributedDataParallel(net)
    config = {"precision": "fp32", "recovery": jobs.RECOVERY}
    guard = hg.Guard(model, jobs.optimizer_of(model, "sgd"), config, run_dir=folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    found: list[tuple[int | None, list[str]]] = []
    for until, room in ((7, 2**20), (11, before[0])):
        if dist.get_rank() == full_on:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            while guard.step_index < until:
                batch = jobs.batch_of(guard.step_index, 2, dist.get_rank())
                assert guard.step(jobs.loss_fn, batch).applied
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert guard._recovery is not None
        dist.barrier()
        left = sorted(path.name for path in Path(folder, "snapshots").iterdir())
        found.append((guard._recovery._snapshots.good_step, left))
        dist.barrier()
    return found


@pytest.mark.parametrize("full_on", [0, 1])
def test_a_file_that_torch_cannot_write_to_its_end_stops_nobody(
    ranks: Group, full_on: int, tmp_path: Path
) -> None:
    found = ranks(2).run(no_room_for_tensors, str(tmp_path), full_on)
    assert found == [[(None, []), (8, ["000000008"])]] * 2


def experts(folder: str, steps: int) -> tuple[float, float]:
    """Give each rank its own expert; return its distance to itself and to the other after a rollback."""
    expert = nn.Linear(4, 4)
    net = nn.Sequential(nn.Linear(jobs.FEATURES, 4), expert)
    with torch.random.fork_rng():
        torch.manual_seed(dist.get_rank())
        nn.init.normal_(expert.weight)
    ignored = [f"1.{name}" for name, _ in expert.named_parameters()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ignored)
    model = DistributedDataParallel(net)
    optimizer = jobs.optimizer_of(model, "adamw")
    config = {"recovery": jobs.RECOVERY, "scale": {"init": 256.0}}
    guard = hg.Guard(model, optimizer, config, run_dir=folder)
    kept = []
    for step in range(steps):
        guard.step(jobs.loss_fn, jobs.batch_of(step, 2, dist.get_rank()))
        kept.append(
            (expert.weight.detach().clone(), optimizer.state[expert.weight]["exp_avg"].clone())
        )
    guard.close()
    again = hg.Guard(model, optimizer, config, run_dir=folder)
    assert again.resume()
    weight, moment = kept[again.step_index - 1]
    both = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(both, expert.weight.detach())
    errors = [expert.weight - weight, optimizer.state[expert.weight]["exp_avg"] - moment]
    return max(e.abs().max().item() for e in errors), (both[0] - both[1]).abs().max().item()


def test_what_a_rank_holds_alone_returns_to_that_rank(ranks: Group, tmp_path: Path) -> None:
    for error, apart in ranks(2).run(experts, str(tmp_path), 11):
        assert error == 0
        assert apart > 0.1


def two_guards(folder: str, steps: int) -> list[int | None]:
    """Train two models in turn, each with its own guard; return the steps of their good snapshots."""
    guards = []
    for number in range(2):
        model, _ = jobs.make("ddp", seed=number)
        config = {"recovery": jobs.RECOVERY | {"every": 2}}
        run_dir = f"{folder}/{number}"
        guards.append(hg.Guard(model, jobs.optimizer_of(model, "adamw"), config, run_dir=run_dir))
    for step in range(steps):
        for guard in guards:
            guard.step(jobs.loss_fn, jobs.batch_of(step, 2, dist.get_rank()))
    recoveries = [guard._recovery for guard in guards]
    for guard in guards:
        guard.close()
    return [None if one is None else one._snapshots.good_step for one in recoveries]


def test_saves_of_two_guards_do_not_wait_for_each_other_forever(
    ranks: Group, tmp_path: Path
) -> None:
    assert ranks(2).run(two_guards, str(tmp_path), 40) == [[38, 38]] * 2


class Average:
    """A weight average that is sharded like its model, as is common with FSDP2."""

    def __init__(self, engine: jobs.Engine) -> None:
        self.net, _ = jobs.make(engine, seed=2)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for average, parameter in zip(self.net.parameters(), model.parameters(), strict=True):
            average.lerp_(parameter, 0.5)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": self.net.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["shadow"])


def averaged(engine: jobs.Engine, folder: str, steps: int) -> tuple[int, dict[str, torch.Tensor]]:
    """Train with an average for some steps, or resume; return the step and its average."""
    model, _ = jobs.make(engine)
    average = Average(engine)
    config = {"recovery": jobs.RECOVERY}
    optimizer = jobs.optimizer_of(model, "adamw")
    guard = hg.Guard(model, optimizer, config, run_dir=folder, ema=average)
    if not steps:
        assert guard.resume()
        guard.close()
        return guard.step_index, jobs.full_state(average.net)
    kept = []
    for step in range(steps):
        guard.step(jobs.loss_fn, jobs.batch_of(step, 4, dist.get_rank()))
        kept.append(jobs.full_state(average.net))
    guard.close()
    return 8, kept[7]


@pytest.mark.slow
def test_an_average_that_is_spread_over_ranks_returns(ranks: Group, tmp_path: Path) -> None:
    (step, kept), *_ = ranks(4).run(averaged, "fsdp2", str(tmp_path), 11)
    found = [
        *ranks(4).run(averaged, "fsdp2", str(tmp_path), 0),
        *ranks(2).run(averaged, "fsdp2", str(tmp_path), 0),
        averaged("alone", str(tmp_path), 0),
    ]
    assert [differences(kept, state) for at, state in found if at == step] == [[]] * 7


def scattered() -> str:
    # Loading it gives a warning about torch.jit, which is an error in the test process.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, _ = jobs.make("ddp")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1)
    with pytest.raises(UsageError, match="snapshots of a ZeroRedundancyOptimizer") as raised:
        hg.Guard(model, optimizer, {"recovery": {}})
    return raised.value.cure


def test_an_optimizer_whose_state_is_scattered_is_refused_at_once(
    ranks: Group,
) -> None:
    assert all("FSDP2" in cure for cure in ranks(2).run(scattered))


def test_a_second_run_in_the_same_folder_keeps_what_it_takes(tmp_path: Path) -> None:
    def run(steps: int) -> hg.Guard:
        model, _ = jobs.make("alone")
        config = {"recovery": {**jobs.RECOVERY, "every": 6}, "skip": {"max_consecutive": 1}}
        guard = hg.Guard(model, jobs.optimizer_of(model, "sgd"), config, run_dir=tmp_path)
        for step in range(steps):
            guard.step(jobs.loss_fn, jobs.batch_of(step, 2))
        return guard

    run(3).close()
    again = run(3)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == ["000000000"]
    x, y = jobs.batch_of(9, 2)
    assert again.step(jobs.loss_fn, (x * torch.nan, y)).action == "roll_back"


def second_guard(folder: str) -> str:
    model, _ = jobs.make("ddp")
    config, batch = {"recovery": jobs.RECOVERY}, jobs.batch_of(0, 2, dist.get_rank())
    first = hg.Guard(model, jobs.optimizer_of(model, "sgd"), config, run_dir=folder)
    first.step(jobs.loss_fn, batch)
    second = hg.Guard(model, jobs.optimizer_of(model, "sgd"), config, run_dir=folder)
    with pytest.raises(UsageError, match="writes its snapshots to") as raised:
        second.step(jobs.loss_fn, batch)
    first.close()
    return raised.value.message


def test_a_second_guard_in_the_folder_is_refused_on_every_rank(
    ranks: Group, tmp_path: Path
) -> None:
    first, second = ranks(2).run(second_guard, str(tmp_path))
    assert first == second


def test_half_written_folders_are_swept_away(tmp_path: Path) -> None:
    left = tmp_path / "snapshots" / "000000006"
    left.mkdir(parents=True)
    model, _ = jobs.make("alone")
    config = {"recovery": jobs.RECOVERY}
    guard = hg.Guard(model, jobs.optimizer_of(model, "sgd"), config, run_dir=tmp_path)
    assert not guard.resume()
    assert not left.exists()
