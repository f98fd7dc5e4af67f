"""Ranks, simulated in torch's fake process group: this process is one rank of any number.

Collectives return at once. So this counts what is sent and measures the work of the host, not a network.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch.testing._internal.distributed.fake_pg import FakeStore

import halfguard.dist.shard_files  # noqa: F401 - importing it would be measured, too
from benchmarks.timings.scaling.rows import Row, Table, in_new_process, timed
from halfguard.dist import checkpoint
from halfguard.dist.collectives import all_gather_numbers
from halfguard.guard.recovery import snapshot_folder
from halfguard.records.snapshot import FileChecksum


def healthy_steps(counts: Sequence[int]) -> Table:
    """Count the collectives that a guarded DDP step adds to a bare one."""
    return Table("A healthy step", [_healthy_step(ranks) for ranks in counts])


def _healthy_step(ranks: int) -> Row:
    found: Any = json.loads(in_new_process("tests.dist.count_collectives", "ddp", ranks))["None 1"]
    added = []  # the bytes of each added collective, for each of four steps
    for with_us, without in zip(found["guarded"], found["bare"], strict=True):
        rest = [tuple(call) for call in with_us]
        for call in without:
            rest.remove(tuple(call))
        added.append([size for _, size in rest])
    return {
        "ranks": ranks,
        "collectives added": max(map(len, added)),
        "bytes": min(map(sum, added)),
        "bytes with the checksum": max(map(sum, added)),
        "host memory of the guard, kB": round(found["held"] / 1000),
    }


def unusual_steps(counts: Sequence[int]) -> Table:
    """Measure what one rank does if a loss is not finite, and if a snapshot is marked good or read."""
    return Table("An unusual step, and a snapshot", [_unusual_step(ranks) for ranks in counts])


def _unusual_step(ranks: int) -> Row:
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        answers = [1.0] * 6  # as guard.fault_report: loss, weights, batch (three), repeatable
        gather, per_rank = timed(lambda: all_gather_numbers(answers, torch.device("cpu")))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            files = _write_files(path, ranks)
            mark, _ = timed(lambda: snapshot_folder.mark_good(path, files))
            looked, listed = timed(lambda: snapshot_folder.read_manifest(path))
            verified, _ = timed(lambda: snapshot_folder.verify_share(path, listed))
            indexed, index = timed(lambda: checkpoint.read_index(path))
            manifest = (path / "good").stat().st_size
    finally:
        dist.destroy_process_group()
    return {
        "ranks": ranks,
        "bytes gathered": 8 * sum(map(len, per_rank)),
        "gather, ms": 1e3 * gather,
        "manifest, kB": manifest / 1e3,
        "mark, ms": 1e3 * mark,
        "look at all files, ms": 1e3 * looked,
        "verify a share, ms": 1e3 * verified,
        "index, ms": 1e3 * indexed,
        "index, kB": len(pickle.dumps(index)) / 1e3,
    }


def _write_files(folder: Path, ranks: int) -> dict[str, FileChecksum]:
    """Write two small files per rank, with the names of a snapshot: a record, and a part of one tensor."""
    files: dict[str, FileChecksum] = {}
    for index in range(ranks):
        record = folder / f"{snapshot_folder.rank_prefix(index)}.json"
        record.write_bytes(b"{}")
        shard = folder / f"shard-{index:05d}-model-00001-of-00001.safetensors"
        sharded = {"weight": {"saved_offsets": [8 * index]}}
        metadata = {"DCP_SHARDING_INFO": json.dumps(sharded)}
        shard.write_bytes(save({"weight": torch.zeros(8)}, metadata))
        files |= {path.name: FileChecksum.of(path) for path in (record, shard)}
    return files


def tables(counts: Sequence[int] = (2, 128, 16_384)) -> list[Table]:
    return [healthy_steps(counts), unusual_steps(counts)]
