"""What advice on memory must know of a job: its blocks, its parameters, its optimizer's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from halfguard.diagnosis.cost.blocks import Blocks, best_blocks
from halfguard.diagnosis.cost.few_rows import few_rows
from halfguard.diagnosis.cost.savings import RANK, Situation
from halfguard.diagnosis.cost.trial import Trial
from halfguard.precision.modes import Precision, autocast
from halfguard.records.cost import PrecisionCost
from halfguard.workload.memory import Ledger

QUANTISED_FROM = 4096  # elements; 8-bit optimizers leave smaller state as it is


def situation_of(trial: Trial, target: PrecisionCost, costs: Sequence[PrecisionCost]) -> Situation:
    """The memory of ``target``, for which advice is wanted, and what the model is made of."""
    model, optimizer = trial.workload.model, trial.workload.optimizer
    half = next((c for c in costs if c.precision != Precision.FP32 and not c.failure), None)
    if target.precision != Precision.FP32:
        half = None
    blocks = _blocks(trial, target)
    state = (t for held in optimizer.state.values() for t in held.values())
    large = [t for t in state if isinstance(t, torch.Tensor) and t.dtype is torch.float32]
    return Situation(
        memory=target.memory,
        half=half.memory if half else None,
        half_name=half.precision if half else "",
        blocks=blocks.container if blocks else "",
        block_count=blocks.count if blocks else 0,
        frees=blocks.frees if blocks else 0,
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        adapters=_adapter_parameters(model),
        large_state=sum(t.nbytes for t in large if t.numel() >= QUANTISED_FROM)
        or (target.memory.largest.optimizer if target.failure else 0),
    )


def _blocks(trial: Trial, target: PrecisionCost) -> Blocks | None:
    """What checkpointing frees; where the batch did not fit, from a few of its rows."""
    job, batch, times = trial.workload, trial.batches[0], 1.0
    if target.out_of_memory:
        batch, times = few_rows(batch)
    elif target.failure:
        return None

    def forward() -> torch.Tensor:
        with autocast(trial.precision, job.device.type):
            return job.loss_of(batch)

    try:
        found = best_blocks(job, forward)
    except Exception:  # noqa: BLE001 - a model that may raise anything, also on few rows
        return None
    return found and replace(found, frees=round(found.frees * times))


def _adapter_parameters(model: nn.Module) -> int:
    linear = (m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad)
    return sum(RANK * (m.in_features + m.out_features) for m in linear)


def activations_of(trial: Trial) -> int:
    """Those of the whole batch, from a few of its rows; 0 if these do not fit either."""
    job = trial.workload
    batch, times = few_rows(trial.batches[0])
    ledger = Ledger(job.model, job.optimizer, job.device)
    try:
        with ledger, autocast(trial.precision, job.device.type):
            job.loss_of(batch)
    except Exception:  # noqa: BLE001 - a model that may raise anything, also on few rows
        return 0
    return round(ledger.memory().largest.activations * times)
