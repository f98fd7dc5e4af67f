"""Models with more and more parameter tensors: operations that are added, time, and bytes that are kept."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tests.guard.test_cost import Many, added, counted, endless_batches, loss_fn
from torch import Tensor
from torch.optim import AdamW

from benchmarks.timings.scaling.rows import Row, Table, timed
from halfguard import Workload, probe
from halfguard.guard.guard import Guard
from halfguard.precision_names import Precision
from halfguard.tracing.tracer import trace
from halfguard.workload.training import TrainingStep

PROBED = 5  # steps


def workload(tensors: int) -> Workload:
    """Return a job with this many parameter tensors."""
    model = Many(tensors, norm=False)
    return Workload(model, loss_fn, _batches, AdamW(model.parameters(), lr=1e-3, foreach=True))


def _batches() -> Iterator[tuple[Tensor, Tensor]]:
    return endless_batches()


def bare_step(tensors: int) -> Callable[[], object]:
    """Return a function that trains on one batch, without halfguard."""
    step, batches = TrainingStep(workload(tensors), Precision.FP32), _batches()
    return lambda: step(next(batches))


def _traced_operations(tensors: int) -> int:
    """Count the operations that a sampled step with ranges adds."""
    model = Many(tensors, norm=False)

    def step() -> None:
        loss_fn(model, next(batches)).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()

    batches = endless_batches()
    alone = counted(step).total
    with trace(model, detail="range") as tracer:

        def traced() -> None:
            step()
            tracer.step()

        return counted(traced).total - alone


def _probe_in_steps(tensors: int) -> float:
    """Return the time of a probe in bare steps, for each of its own steps."""
    step = bare_step(tensors)
    bare = statistics.median(timed(step)[0] for _ in range(10))
    seconds, _ = timed(lambda: probe(workload(tensors), steps=PROBED))
    return seconds / PROBED / bare


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _kept_bytes(tensors: int) -> tuple[int, int, int]:
    """Return the bytes of the weights, of an incident, and of a snapshot on disk."""
    model = Many(tensors, norm=False)
    optimizer = AdamW(model.parameters(), lr=1e-3, foreach=True)
    recovery = {"every": 2, "store": "disk"}
    batches = endless_batches()
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(model, optimizer, {"recovery": recovery}, run_dir=folder)
        for _ in range(4):
            guard.step(loss_fn, next(batches))
        x, y = next(batches)
        guard.step(loss_fn, (x * torch.nan, y))
        guard.close()
        incident = _bytes_below(Path(folder) / "incidents")
        good = next((Path(folder) / "snapshots").glob("*/good"))
        snapshot = _bytes_below(good.parent)
    return sum(p.numel() * p.element_size() for p in model.parameters()), incident, snapshot


def _row(tensors: int) -> Row:
    weights, incident, snapshot = _kept_bytes(tensors)
    operations, syncs = added(tensors, "adamw-foreach")
    return {
        "parameter tensors": tensors,
        "operations the guard adds": operations,
        "host syncs": syncs,
        "operations trace adds, per module": _traced_operations(tensors) / (tensors // 2),
        "a probed step, in bare steps": _probe_in_steps(tensors),
        "weights, kB": weights / 1e3,
        "incident, kB": incident / 1e3,
        "snapshot, kB": snapshot / 1e3,
    }


def tables(counts: Sequence[int] = (20, 200, 2000)) -> list[Table]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        rows = [_row(tensors) for tensors in counts]
    return [Table("One rank, layers of 4 by 4", rows)]
