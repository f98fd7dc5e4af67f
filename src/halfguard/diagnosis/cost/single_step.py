"""The memory and the operations of a single step, also of one that fails."""

from __future__ import annotations

import torch

from halfguard.diagnosis.cost.memory_facts import activations_of
from halfguard.diagnosis.cost.operations import Operations, operations
from halfguard.diagnosis.cost.out_of_memory import completed
from halfguard.diagnosis.cost.trial import Trial
from halfguard.errors import HalfguardError
from halfguard.records.cost import PrecisionCost
from halfguard.workload.memory import Ledger
from halfguard.workload.out_of_memory import is_out_of_memory
from halfguard.workload.user_error import user_frame


def measured(trial: Trial) -> PrecisionCost:
    """What a step needs; a failure ends in a sentence, not in a traceback."""
    job = trial.workload
    ledger = Ledger(job.model, job.optimizer, job.device)
    try:
        with ledger:
            trial.step()
        trial.settle()
        job.optimizer.zero_grad()
        with (settled := Ledger(job.model, job.optimizer, job.device)):
            trial.step()
        counted = operations(trial.step)
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything
        failure = f"{type(error).__name__}: {_said(error)}{user_frame(error)}"
        full = is_out_of_memory(error)
    else:
        return _passed(trial, settled, counted)
    # Outside of except: the traceback, which kept the step's tensors alive, is gone.
    job.optimizer.zero_grad()
    memory = ledger.memory()
    if full:
        if job.device.type == "cuda":
            torch.cuda.empty_cache()
        memory = completed(memory, job.model, job.optimizer, activations_of(trial))
    return PrecisionCost(
        precision=trial.precision.value, memory=memory, failure=failure, out_of_memory=full
    )


def _said(error: Exception) -> str:
    """Our own errors with their cure; of others, which may go on for pages, the first line."""
    lines = str(error).splitlines() or [""]
    return " ".join(lines) if isinstance(error, HalfguardError) else lines[0]


def _passed(trial: Trial, settled: Ledger, counted: Operations) -> PrecisionCost:
    return PrecisionCost(
        precision=trial.precision.value,
        memory=settled.memory(),
        operations=counted.total,
        casts=counted.casts,
        flops=counted.flops,
    )
