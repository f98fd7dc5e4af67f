"""The time and memory of a step in each precision, measured before a long run is started.

All precisions train the same job on the same batches, in turn, under the machine's own rules: no emulation.
The numbers show whether 16 bits are worth it on this machine; ``gain`` explains why not, ``fits`` whether the
step fits into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from halfguard.diagnosis.cost.fits import fit_findings
from halfguard.diagnosis.cost.gain import gain_findings
from halfguard.diagnosis.cost.step import RepeatedStep, make_repeated_steps, measure_step
from halfguard.diagnosis.machine.speed import DTYPES, measure_rate, measure_speeds
from halfguard.errors import UsageError
from halfguard.hardware.measured import Speeds
from halfguard.precision.modes import autocast_dtype
from halfguard.precision_names import Precision
from halfguard.records.cost import Cost, PrecisionCost
from halfguard.records.finding import Severity
from halfguard.records.sizes import parse_bytes
from halfguard.step.random_state import seeded
from halfguard.workload import Workload
from halfguard.workload.timing import medians, ratios, time_interleaved

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
        raise UsageError("No precision was named.", cure=f"Allowed: {', '.join(Precision)}.")
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
