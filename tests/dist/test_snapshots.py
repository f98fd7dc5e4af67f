"""A snapshot of four ranks is read by four, by two and by one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import halfguard as hg
from halfguard.guard import disk
from tests.dist import jobs
from tests.support.ranks import Ranks


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "hsdp"])
def test_another_number_of_ranks_reads_it(
    ranks: Callable[[int], Ranks], engine: jobs.Engine, tmp_path: Path
) -> None:
    (step, kept), *others = ranks(4).run(jobs.snapshotted, engine, str(tmp_path), 11)
    assert step == 8
    assert all(not differing(kept, other) for _, other in others)
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
    assert [differing(kept, state) for at, state in found if at == step] == [[]] * 7


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]


def test_nothing_is_pickled(ranks: Callable[[int], Ranks], tmp_path: Path) -> None:
    ranks(2).run(jobs.snapshotted, "fsdp2", str(tmp_path), 11)
    kinds = {path.suffix for path in (tmp_path / "snapshots").rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json", ""}  # the mark of a good one has no suffix


def full_disk(folder: str, full_on: int, steps: int) -> tuple[int, int | None]:
    """Train while one rank cannot write its part of a snapshot."""
    module: Any = disk
    real = module.write_whole

    def write(path: Path, content: Any) -> None:
        if dist.get_rank() == full_on:
            raise OSError(28, "No space left on device")
        real(path, content)

    module.write_whole = write
    try:
        model, _ = jobs.make("ddp")
        optimizer = jobs.optimizer_of(model, "sgd")
        guard = hg.Guard(model, optimizer, {"recovery": jobs.RECOVERY}, run_dir=folder)
        for step in range(steps):
            guard.step(jobs.loss_fn, jobs.batch_of(step, 2, dist.get_rank()))
        assert guard._recovery is not None
        return guard.close().applied, guard._recovery._snapshots.good_step
    finally:
        module.write_whole = real


@pytest.mark.parametrize("full_on", [0, 1])
def test_a_full_disk_on_one_rank_stops_nobody(
    ranks: Callable[[int], Ranks], full_on: int, tmp_path: Path
) -> None:
    assert ranks(2).run(full_disk, str(tmp_path), full_on, 11) == [(11, None)] * 2
