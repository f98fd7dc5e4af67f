"""A damaged snapshot: all ranks read the one before it, or all ranks raise the same error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

import halfguard as hg
from halfguard.errors import RecordError
from halfguard.guard.recovery import snapshot_folder
from halfguard.records.snapshot import FileChecksum
from tests.dist import jobs
from tests.support.models import differences
from tests.support.ranks import Group


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 0x40
    path.write_bytes(content)


DAMAGES = [cut_in_half, emptied, flipped, Path.unlink]
SHARDS = "shard-*"


def trained(engine: jobs.Engine, folder: str) -> list[dict[str, torch.Tensor]]:
    """Train; return weights and moments after each step. Snapshots of steps 4 and 8 remain."""
    model, _ = jobs.make(engine)
    optimizer = jobs.optimizer_of(model, "sgd")
    guard = hg.Guard(model, optimizer, {"recovery": jobs.RECOVERY}, run_dir=folder)
    states = []
    for step in range(11):
        guard.step(jobs.loss_fn, jobs.batch_of(step, 4, dist.get_rank()))
        states.append(jobs.everything(model, optimizer))
    guard.close()
    return states


def resumed(engine: jobs.Engine, folder: str) -> Any:
    """Return the step that the run resumes at, with weights and moments; or the error."""
    # Fill memory, so that uninitialized tensors can be recognized.
    junk = [torch.full((64,), 7e7) for _ in range(5000)]
    del junk
    model, _ = jobs.make(engine, seed=1)
    optimizer = jobs.optimizer_of(model, "sgd")
    guard = hg.Guard(model, optimizer, {"recovery": jobs.RECOVERY}, run_dir=folder)
    try:
        assert guard.resume()
    except RecordError as error:
        return str(error)
    finally:
        guard.close()  # the next one to resume may be in another process
    return guard.step_index, jobs.everything(model, optimizer)


def damage(how: Callable[[Path], None], folder: Path, step: int, which: str, number: int) -> str:
    file = sorted((folder / "snapshots" / f"{step:09d}").glob(which))[number]
    how(file)
    return file.name


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_the_snapshot_before_it_is_taken(
    ranks: Group, engine: jobs.Engine, how: Callable[[Path], None], tmp_path: Path
) -> None:
    states, _ = ranks(2).run(trained, engine, str(tmp_path))
    damage(how, tmp_path, 8, SHARDS, 1)
    for step, state in ranks(2).run(resumed, engine, str(tmp_path)):
        assert step == 4
        assert not differences(states[3], state)
    left = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert left == ["000000004", "000000008.damaged"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_a_lost_shard_never_becomes_memory_as_it_was_found(
    ranks: Group, number: int, tmp_path: Path
) -> None:
    """For every shard, and for every number of ranks that read the rest."""
    ranks(4).run(trained, "fsdp2", str(tmp_path))
    (name,) = {damage(Path.unlink, tmp_path, step, SHARDS, number) for step in (4, 8)}
    for found in [
        *ranks(4).run(resumed, "fsdp2", str(tmp_path)),
        *ranks(2).run(resumed, "fsdp2", str(tmp_path)),
        resumed("alone", str(tmp_path)),
    ]:
        assert f"{name} is missing" in found
        assert f"remove {tmp_path / 'snapshots'} to start again" in found
    left = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert left == ["000000004", "000000008"]  # the file may still be restored


def test_a_file_that_one_rank_alone_reads_stops_all_of_them(ranks: Group, tmp_path: Path) -> None:
    ranks(2).run(trained, "ddp", str(tmp_path))
    for step in (4, 8):
        damage(flipped, tmp_path, step, "rank-00001.json", 0)
    first, second = ranks(2).run(resumed, "ddp", str(tmp_path))
    assert first == second
    assert "contents of rank-00001.json have changed" in first


def watched(folder: str) -> tuple[Counter[str], set[str]]:
    """Resume; return how often this rank looked at all files, and the files that it read to the end."""
    calls, verified = Counter[str](), set[str]()
    manifest, index, checksum = (
        snapshot_folder.read_manifest,
        HuggingFaceStorageReader.read_metadata,
        FileChecksum.of,
    )

    def counted_manifest(path: Path) -> Any:
        calls["manifest"] += 1
        return manifest(path)

    def counted_index(reader: Any) -> Any:
        calls["index"] += 1
        return index(reader)

    def noted_checksum(path: Path) -> Any:
        verified.add(path.name)
        return checksum(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_folder, "read_manifest", counted_manifest)
        patch.setattr(HuggingFaceStorageReader, "read_metadata", counted_index)
        patch.setattr(FileChecksum, "of", noted_checksum)
        step, _ = resumed("fsdp2", folder)
    assert step == 8
    return calls, verified


def test_one_rank_looks_at_all_files_and_each_file_is_verified_by_one(
    ranks: Group, tmp_path: Path
) -> None:
    ranks(2).run(trained, "fsdp2", str(tmp_path))
    (first, mine), (second, theirs) = ranks(2).run(watched, str(tmp_path))
    assert first == {"manifest": 1, "index": 1}
    assert second == {}
    assert not mine & theirs
    folder = tmp_path / "snapshots" / "000000008"
    assert mine | theirs == {path.name for path in folder.iterdir()} - {"good"}
