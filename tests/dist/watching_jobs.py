"""Watched jobs on several ranks: a fault on one rank only, and an audit that raises on one rank only."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import halfguard as hg
from halfguard.guard.watching.watching import sampled_step
from halfguard.records.step import StepRow
from halfguard.records.watch import WatchRow
from tests.dist.count_collectives import Calls, Collectives
from tests.dist.healing_jobs import Normed, islands, loss_fn, optimizer
from tests.dist.healing_jobs import batch as loud_on_rank_1
from tests.dist.jobs import everything

Fault = Literal["overflow", "audit raises", "nan"]
EVERY, STEPS = 4, 10
LOUD, QUIET = 2, 0  # numbers of batches
CONFIG: dict[str, Any] = {"desync": {"every": 2}, "scale": {"init": 1024.0}}


@dataclass
class Watched:
    """What a rank saw."""

    applied: list[bool]
    collectives: Calls
    texts: list[str]  # of the log
    alarms: list[tuple[int, str | None, int]]  # step, module, line
    sampled: list[int]  # of the journal, which rank 0 writes
    interval: int  # that was sampled last
    blamed: list[tuple[int, ...]]  # the ranks on which bad steps began
    islands: list[str]
    weights: dict[str, Tensor]


class _Texts(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def fails_on_rank_1(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Raise on rank 1 in an audit, which runs the model without its wrapper."""
    if dist.get_rank() == 1 and not isinstance(model, DistributedDataParallel):
        raise RuntimeError("out of memory")
    return loss_fn(model, batch)


def run(fault: Fault, extra: dict[str, Any], folder: str) -> Watched:
    """Train, with a fault on rank 1 alone."""
    rank, texts, collectives = dist.get_rank(), _Texts(), Collectives()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DistributedDataParallel(Normed())
    chosen = optimizer(model)
    guard = hg.Guard(model, chosen, CONFIG | extra, run_dir=folder)
    logger = logging.getLogger("halfguard")
    logger.addHandler(texts)
    level, loss = logger.level, fails_on_rank_1 if fault == "audit raises" else loss_fn
    logger.setLevel(logging.INFO)
    applied = []
    try:
        for step in range(STEPS):
            x, y = loud_on_rank_1(QUIET if fault == "nan" else LOUD, rank)
            if fault == "nan" and rank == 1 and step == sampled_step(0, EVERY):
                x = x * torch.nan
            with collectives:
                applied.append(guard.step(loss, (x, y)).applied)
        guard.close()
    finally:
        logger.removeHandler(texts)
        logger.setLevel(level)
    watching, rows = guard.watching, guard._recorder.journal.recent_rows(100)
    found = [] if watching is None else watching.alarms
    return Watched(
        applied,
        collectives.seen,
        texts.found,
        [(one.step, one.finding.module, one.finding.line) for one in found],
        [row.step for row in rows if isinstance(row, WatchRow)],
        -1 if watching is None else watching.state_dict()["interval"],
        [row.ranks for row in rows if isinstance(row, StepRow)],
        islands(model),
        everything(model, chosen),
    )
