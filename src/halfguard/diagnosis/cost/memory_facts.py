"""Collect the facts for advice on memory: blocks, parameters and optimizer state of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from halfguard.diagnosis.cost.blocks import RepeatedBlocks, find_best_blocks
from halfguard.diagnosis.cost.repeated_step import RepeatedStep
from halfguard.diagnosis.cost.savings import RANK, MemoryFacts
from halfguard.precision.modes import autocast
from halfguard.precision_names import Precision
from halfguard.records.cost import PrecisionCost
from halfguard.workload.memory import MemoryTracker

QUANTISED_FROM = 4096  # elements; 8-bit optimizers keep smaller state in FP32
FEW_ROWS = 2  # one row is too few for BatchNorm


def collect_memory_facts(
    step: RepeatedStep, target: PrecisionCost, costs: Sequence[PrecisionCost]
) -> MemoryFacts:
    """Collect the memory of ``target``, which the advice is for, and facts about model and optimizer."""
    model, optimizer = step.workload.model, step.workload.optimizer
    half = next((c for c in costs if c.precision != Precision.FP32 and not c.failure), None)
    if target.precision != Precision.FP32:
        half = None
    blocks = _blocks(step, target)
    state = (t for held in optimizer.state.values() for t in held.values())
    large = [t for t in state if isinstance(t, torch.Tensor) and t.dtype is torch.float32]
    return MemoryFacts(
        memory=target.memory,
        half=half.memory if half else None,
        half_name=half.precision if half else "",
        blocks=blocks.container if blocks else "",
        block_count=blocks.count if blocks else 0,
        freed_bytes=blocks.freed_bytes if blocks else 0,
        trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        adapters=_adapter_parameters(model),
        large_state=sum(t.nbytes for t in large if t.numel() >= QUANTISED_FROM)
        or (target.memory.largest.optimizer if target.failure else 0),
    )


def _blocks(step: RepeatedStep, target: PrecisionCost) -> RepeatedBlocks | None:
    """Measure what checkpointing frees; if the batch did not fit, on a few of its rows."""
    job, batch, times = step.workload, step.batches[0], 1.0
    if target.out_of_memory:
        batch, times = take_few_rows(batch)
    elif target.failure:
        return None

    def forward() -> torch.Tensor:
        with autocast(step.precision, job.device.type):
            return job.loss_of(batch)

    try:
        found = find_best_blocks(job, forward)
    except Exception:  # noqa: BLE001 - a model that may raise anything, also on few rows
        return None
    return found and replace(found, freed_bytes=round(found.freed_bytes * times))


def _adapter_parameters(model: nn.Module) -> int:
    linear = (m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad)
    return sum(RANK * (m.in_features + m.out_features) for m in linear)


def estimate_activations(step: RepeatedStep) -> int:
    """Estimate the activations of the batch from a few of its rows; 0 if these do not fit either."""
    job = step.workload
    batch, times = take_few_rows(step.batches[0])
    tracker = MemoryTracker(job.model, job.optimizer, job.device)
    try:
        with tracker, autocast(step.precision, job.device.type):
            job.loss_of(batch)
    except Exception:  # noqa: BLE001 - a model that may raise anything, also on few rows
        return 0
    return round(tracker.memory().largest.activations * times)


def take_few_rows(batch: Any) -> tuple[Any, float]:
    """Return the batch cut to its first rows, and the number of times that the batch is larger.

    Cuts every tensor that has the batch's size, so that the step fits where the whole batch did not.
    """
    sizes = Counter(t.shape[0] for t in tree_leaves(batch) if isinstance(t, Tensor) and t.dim())
    rows = sizes.most_common(1)[0][0] if sizes else 0
    if rows <= FEW_ROWS:
        return batch, 1.0

    def cut(value: Any) -> Any:
        whole = isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == rows
        return value[:FEW_ROWS].clone() if whole else value  # a view would keep all rows alive

    return tree_map(cut, batch), rows / FEW_ROWS
