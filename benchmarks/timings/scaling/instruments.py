"""Doctor and replay on models with more and more parameter tensors, in bare training steps."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.guard.test_cost import endless_batches, loss_fn

from benchmarks.timings.scaling.model import bare_step, workload
from benchmarks.timings.scaling.rows import Row, Table, timed
from halfguard import doctor, replay
from halfguard.guard.guard import Guard

REPEATS = 5


def _bare_seconds(tensors: int) -> float:
    step = bare_step(tensors)
    step()
    return statistics.median(timed(step)[0] for _ in range(4 * REPEATS))


def _doctor_seconds(tensors: int) -> float:
    job = workload(tensors)
    batch = next(job.take(1))
    seconds = []
    for _ in range(REPEATS):
        taken, diagnosis = timed(
            lambda: doctor(job.model, job.optimizer, precision="fp32", loss=loss_fn, batch=batch)
        )
        if not diagnosis.effective or diagnosis.effective.got != "fp32":
            raise RuntimeError(f"doctor saw no FP32 step: {diagnosis}")
        seconds.append(taken)
    return statistics.median(seconds)


def _replay_runs(tensors: int) -> tuple[int, float]:
    """Return how often a replay runs a step with one bad sample of eight, and its seconds."""
    job, runs = workload(tensors), list[str]()
    x, y = next(endless_batches())
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(job.model, job.optimizer, {"precision": "fp32"}, run_dir=folder)
        guard.step(loss_fn, (x.index_fill(0, torch.tensor([3]), torch.inf), y))
        guard.close()
        (incident,) = (Path(folder) / "incidents").iterdir()
        seconds, autopsy = timed(lambda: replay(incident, workload(tensors), watch=runs.append))
    if autopsy.samples != (3,):
        raise RuntimeError(f"replay did not find the sample: {autopsy}")
    return len(runs), seconds


def _row(tensors: int) -> Row:
    bare = _bare_seconds(tensors)
    doctor_seconds, (runs, replay_seconds) = _doctor_seconds(tensors), _replay_runs(tensors)
    return {
        "parameter tensors": tensors,
        "a bare step, ms": 1e3 * bare,
        "doctor, ms": 1e3 * doctor_seconds,
        "doctor, in bare steps": doctor_seconds / bare,
        "runs of a replay": runs,
        "replay, ms": 1e3 * replay_seconds,
        "a run, in bare steps": replay_seconds / runs / bare,
    }


def tables(counts: Sequence[int] = (20, 200, 2000)) -> list[Table]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        rows = [_row(tensors) for tensors in counts]
    return [Table("Doctor and replay, layers of 4 by 4", rows)]
