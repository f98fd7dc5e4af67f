"""The time and memory of a step in each precision, measured before a long run is started.

All precisions train the same job on the same batches, in turn, under the machine's own rules: no emulation.
The numbers show whether 16 bits are worth it on this machine; ``gain`` explains why not, and whether the step
fits into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from halfguard.catalogue import Severity
from halfguard.diagnosis.cost.gain import fit_findings, gain_findings
from halfguard.diagnosis.machine.speed import DTYPES, measure_rate, measure_speeds
from halfguard.errors import HalfguardError, UsageError
from halfguard.hardware.choice import Speeds
from halfguard.precision.modes import autocast_dtype
from halfguard.precision_names import Precision
from halfguard.records.cost import Cost, PrecisionCost
from halfguard.records.sizes import parse_bytes
from halfguard.step.random_state import seeded
from halfguard.tracing.call_arguments import OperationMode
from halfguard.workload import TrainingStep, Workload
from halfguard.workload.memory import MemoryTracker
from halfguard.workload.timing import medians, ratios, time_interleaved
from halfguard.workload.user_error import is_out_of_memory, user_frame

MAX_SETTLING_STEPS = 24  # skipped steps after which a loss scale that does not settle is left alone
# torch's GradScaler does not say what to do about its errors.
_SCALER_CURES = {
    "Attempting to unscale FP16 gradients": (
        "For adapters on a frozen base, call halfguard.upcast_trainable(model) before creating the "
        "optimizer. To train FP16 weights, wrap the optimizer: halfguard.MasterWeights(optimizer)."
    ),
    "No inf checks were recorded": (
        "No gradient reached the optimizer: either the loss does not depend on its parameters, or it was "
        "created before model.to(device) replaced them."
    ),
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


class _Counter(OperationMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()
        self.count = self.casts = 0

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.count += 1
        if func is torch.ops.aten._to_copy.default and "dtype" in kwargs:
            self.casts += 1
        return func(*args, **kwargs)


def _count_operations(step: Callable[[], object]) -> tuple[int, int, int]:
    """Run ``step`` twice; count operations, those that only change a dtype, and the FLOPs of products."""
    with _Counter() as counter:
        step()
    with FlopCounterMode(display=False) as arithmetic:
        step()
    return counter.count, counter.casts, arithmetic.get_total_flops()


BATCH_COUNT = 4  # several, in case their shapes differ
DEFAULT_PRECISIONS = (Precision.FP32, Precision.FP16_MIXED, Precision.BF16_MIXED)
Advance = Callable[[], None]


def measure_cost(
    workload: Workload,
    precisions: Sequence[str] | None = None,
    *,
    rounds: int = 12,
    budget: int | str | None = None,
    advance: Advance | None = None,
) -> Cost:
    """Measure a training step of a copy of ``workload`` in each precision.

    The others are compared with the first of ``precisions``. Without any, FP32, FP16 and BF16 are measured,
    and a precision that gains nothing is a note, not a warning. ``budget`` is the memory that a step may
    need, in bytes or as text such as ``"2GB"``. ``advance`` is called after every timed step.
    """
    limit = parse_bytes(budget) if isinstance(budget, str) else budget
    wanted = [
        Precision(name)
        for name in dict.fromkeys(DEFAULT_PRECISIONS if precisions is None else precisions)
    ]
    if not wanted:
        raise UsageError("No precision was specified.", cure=f"Allowed: {', '.join(Precision)}.")
    with seeded(workload.seed):
        job = workload.fresh()
        steps = make_repeated_steps(job, wanted, list(job.take(BATCH_COUNT)))
        rate, speeds = measure_rate(job.device), measure_speeds(job.device) or {}
        costs = _add_times(steps, list(map(measure_step, steps)), speeds, rounds, advance)
    cost = Cost(
        device=f"cuda ({torch.cuda.get_device_name(job.device)})"
        if job.device.type == "cuda"
        else job.device.type,
        rounds=rounds,
        product_flops=rate,
        fp32_products=torch.get_float32_matmul_precision(),
        costs=tuple(costs),
        budget=limit,
    )
    severity: Severity = "note" if precisions is None else "warning"
    findings = (*fit_findings(cost), *gain_findings(cost, severity))
    return cost.model_copy(update={"findings": findings})


def _add_times(
    steps: Sequence[RepeatedStep],
    costs: Sequence[PrecisionCost],
    speeds: Speeds,
    rounds: int,
    advance: Advance | None,
) -> list[PrecisionCost]:
    def run(step: RepeatedStep) -> None:
        step.run_next()
        if advance is not None:
            advance()

    passed = [step for step, cost in zip(steps, costs, strict=True) if not cost.failure]
    runs = {step.precision.value: partial(run, step) for step in passed}
    if not runs:
        return list(costs)
    seconds = time_interleaved(runs, rounds=rounds)
    middle, spreads = medians(seconds), ratios(seconds, against=next(iter(runs)))
    return [
        cost
        if cost.failure
        else cost.model_copy(
            update={
                "seconds": middle[cost.precision],
                "ratio": spreads[cost.precision],
                "matmul_ratio": _product_ratio(cost.precision, speeds),
            }
        )
        for cost in costs
    ]


def _product_ratio(precision: str, speeds: Speeds) -> float | None:
    """Return the time of a large matrix product over FP32's; FP16 weights have those of fp16-mixed."""
    dtype = autocast_dtype(precision)
    speed = next((speeds.get(name) for name, known in DTYPES.items() if known is dtype), None)
    return None if speed is None else 1 / speed
