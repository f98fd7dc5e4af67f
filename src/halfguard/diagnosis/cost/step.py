"""A training step in one precision, repeated on the same few batches: its memory and its operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from halfguard.errors import HalfguardError
from halfguard.precision_names import Precision
from halfguard.records.cost import PrecisionCost
from halfguard.workload import TrainingStep, Workload
from halfguard.workload.memory import MemoryTracker
from halfguard.workload.user_error import is_out_of_memory, user_frame

MAX_SETTLING_STEPS = 24  # skipped steps after which a loss scale that does not settle is left alone
# torch's GradScaler does not say what to do about its errors.
_SCALER_CURES = {
    "Attempting to unscale FP16 gradients": "For adapters over a frozen base call "
    "halfguard.upcast_trainable(model) before building the optimizer; to train FP16 weights wrap it: "
    "halfguard.MasterWeights(optimizer).",
    "No inf checks were recorded": "No gradient reached the optimizer: either the loss does not depend on "
    "its parameters, or it was built before model.to(device) replaced them.",
}


class RepeatedStep(TrainingStep):
    """A training step over the same batches in turn, under the machine's own autocast rules."""

    def __init__(self, workload: Workload, precision: Precision, batches: Sequence[Any]) -> None:
        super().__init__(workload, precision, cuda_rules=False)
        self.batches, self._count = batches, 0

    def run_next(self) -> None:
        """Train on the next batch; a step that overflows is skipped, as in normal training."""
        batch = self.batches[self._count % len(self.batches)]
        self._count += 1
        self(batch)

    def settle(self) -> None:
        """Train until the loss scale fits: a skipped step is faster than a normal one."""
        for _ in range(MAX_SETTLING_STEPS):
            before = self.scaler.get_scale()
            self.run_next()
            if self.scaler.get_scale() >= before:
                break
        self._count = 0


def make_repeated_steps(
    workload: Workload, precisions: Sequence[Precision], batches: Sequence[Any]
) -> list[RepeatedStep]:
    """Return one step per precision; precisions with FP32 weights share one model to save memory."""
    steps: list[RepeatedStep] = []
    for precision in precisions:
        job = workload.fresh() if precision.needs_master_weights else workload
        job.model.train()
        job.store_weights_as(precision)
        steps.append(RepeatedStep(job, precision, batches))
    return steps


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
        operations, casts, flops = _count_operations(step.run_next)
    except Exception as error:  # noqa: BLE001 - the user's model may raise anything
        failure = f"{type(error).__name__}: {_short_message(error)}{user_frame(error)}"
        out_of_memory = is_out_of_memory(error)
    else:
        return PrecisionCost(
            precision=step.precision.value,
            memory=settled.memory(),
            operations=operations,
            casts=casts,
            flops=flops,
        )
    # Outside of except: the traceback, which kept the step's tensors alive, is gone.
    job.optimizer.zero_grad()
    if out_of_memory:
        allocator = torch.get_device_module(job.device)
        if hasattr(allocator, "empty_cache"):
            allocator.empty_cache()
    return PrecisionCost(
        precision=step.precision.value,
        memory=first.memory(),
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


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.casts = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        if func is torch.ops.aten._to_copy.default and "dtype" in (kwargs or {}):
            self.casts += 1
        return func(*args, **(kwargs or {}))


def _count_operations(step: Callable[[], object]) -> tuple[int, int, int]:
    """Run ``step`` twice; count operations, those that only change a dtype, and the FLOPs of products."""
    with _Counter() as counter:
        step()
    with FlopCounterMode(display=False) as arithmetic:
        step()
    return counter.count, counter.casts, arithmetic.get_total_flops()
