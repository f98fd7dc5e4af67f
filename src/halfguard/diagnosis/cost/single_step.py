"""The memory and the operations of a single step, also if the step fails."""

from __future__ import annotations

import torch

from halfguard.diagnosis.cost.memory_estimate import estimate_full_step
from halfguard.diagnosis.cost.memory_facts import estimate_activations
from halfguard.diagnosis.cost.operations import count_operations
from halfguard.diagnosis.cost.repeated_step import RepeatedStep
from halfguard.errors import HalfguardError
from halfguard.records.cost import PrecisionCost
from halfguard.workload.memory import MemoryTracker
from halfguard.workload.user_error import is_out_of_memory, user_frame

# torch's GradScaler does not say what to do about its errors.
_SCALER_CURES = {
    "Attempting to unscale FP16 gradients": "For adapters over a frozen base call "
    "halfguard.upcast_trainable(model) before building the optimizer; to train FP16 weights wrap it: "
    "halfguard.MasterWeights(optimizer).",
    "No inf checks were recorded": "No gradient reached the optimizer: either the loss does not depend on "
    "its parameters, or it was built before model.to(device) replaced them.",
}


def measure_step(step: RepeatedStep) -> PrecisionCost:
    """Return the memory and the operations of a step; a failure becomes one sentence, not a traceback."""
    job = step.workload
    first = MemoryTracker(job.model, job.optimizer, job.device)
    try:
        with first:
            step.run_next()
        step.settle()
        job.optimizer.zero_grad()
        with (settled := MemoryTracker(job.model, job.optimizer, job.device)):
            step.run_next()
        counts = count_operations(step.run_next)
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything
        failure = f"{type(error).__name__}: {_short_message(error)}{user_frame(error)}"
        out_of_memory = is_out_of_memory(error)
    else:
        return PrecisionCost(
            precision=step.precision.value,
            memory=settled.memory(),
            operations=counts.total,
            casts=counts.casts,
            flops=counts.flops,
        )
    # Outside of except: the traceback, which kept the step's tensors alive, is gone.
    job.optimizer.zero_grad()
    memory = first.memory()
    if out_of_memory:
        allocator = torch.get_device_module(job.device)
        if hasattr(allocator, "empty_cache"):
            allocator.empty_cache()
        memory = estimate_full_step(memory, job.model, job.optimizer, estimate_activations(step))
    return PrecisionCost(
        precision=step.precision.value,
        memory=memory,
        failure=failure,
        out_of_memory=out_of_memory,
    )


def _short_message(error: Exception) -> str:
    """Return our own errors with their cure, and the first line of others, which may be pages long."""
    lines = str(error).splitlines() or [""]
    if isinstance(error, HalfguardError):
        return " ".join(lines)
    cures = [cure for text, cure in _SCALER_CURES.items() if text in lines[0]]
    return " ".join([lines[0], *cures])
