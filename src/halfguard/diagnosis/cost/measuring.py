"""What a precision will cost and save, measured before an hour is lost: a step's time and its memory.

Every precision steps the same job over the same batches, in turn, on the machine as it is: no emulation. The
numbers say whether half is worth it here; ``gain`` says why not, ``fits`` whether there is memory for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from halfguard.diagnosis.cost.fits import fit_findings
from halfguard.diagnosis.cost.gain import gain_findings
from halfguard.diagnosis.cost.memory_facts import situation_of
from halfguard.diagnosis.cost.savings import savings
from halfguard.diagnosis.cost.shapes import missed_shapes
from halfguard.diagnosis.cost.single_step import measured
from halfguard.diagnosis.cost.trial import Trial, trials
from halfguard.diagnosis.machine.measured import Speeds
from halfguard.diagnosis.machine.speed import DTYPES, measure_rate, measure_speeds
from halfguard.errors import UsageError
from halfguard.precision.modes import Precision
from halfguard.records.cost import Cost, PrecisionCost, TimeRatio
from halfguard.records.finding import Severity
from halfguard.records.sizes import bytes_of
from halfguard.workload import Workload, seeded
from halfguard.workload.timing import interleaved, medians, ratios

BATCHES = 4  # different ones, in case their shapes differ
DEFAULT = (Precision.FP32, Precision.FP16_MIXED, Precision.BF16_MIXED)
Advance = Callable[[], None]


def measure_cost(
    workload: Workload,
    precisions: Sequence[str] | None = None,
    *,
    rounds: int = 12,
    budget: int | str | None = None,
    advance: Advance | None = None,
) -> Cost:
    """Measure a training step of ``workload`` in each precision, on a copy: yours is left as it is.

    The first of ``precisions`` is what the others are compared with. Without any, FP32, FP16 and BF16 are
    measured, and that one of them does not pay is a note, since nobody asked for it. ``budget`` is the
    memory that a step may need, in bytes or as text such as ``"2GB"``. ``advance`` is called after every
    timed step.
    """
    limit = bytes_of(budget) if isinstance(budget, str) else budget
    wanted = [
        Precision(name) for name in dict.fromkeys(DEFAULT if precisions is None else precisions)
    ]
    if not wanted:
        raise UsageError("No precision was named.", cure=f"Allowed: {', '.join(Precision)}.")
    with seeded(workload.seed):
        job = workload.fresh()
        jobs = trials(job, wanted, list(job.take(BATCHES)))
        rate, speeds = measure_rate(job.device), measure_speeds(job.device) or {}
        costs = _timed(jobs, [measured(trial) for trial in jobs], speeds, rounds, advance)
        target = _target(costs)
        situation = situation_of(jobs[costs.index(target)], target, costs)
    cost = Cost(
        device=_device(job.device),
        rounds=rounds,
        product_flops=rate,
        fp32_products=torch.get_float32_matmul_precision(),
        costs=tuple(costs),
        shapes=missed_shapes(job.model),
        savings_for=target.precision,
        savings=savings(situation),
        budget=limit,
    )
    severity: Severity = "note" if precisions is None else "warning"
    findings = (*fit_findings(cost), *gain_findings(cost, severity))
    return cost.model_copy(update={"findings": findings})


def _timed(
    jobs: Sequence[Trial],
    costs: Sequence[PrecisionCost],
    speeds: Speeds,
    rounds: int,
    advance: Advance | None,
) -> list[PrecisionCost]:
    def run(trial: Trial) -> None:
        trial.step()
        if advance is not None:
            advance()

    passed = [trial for trial, cost in zip(jobs, costs, strict=True) if not cost.failure]
    runs = {trial.precision.value: partial(run, trial) for trial in passed}
    if not runs:
        return list(costs)
    seconds = interleaved(runs, rounds=rounds)
    middle, spreads = medians(seconds), ratios(seconds, against=next(iter(runs)))
    return [
        cost
        if cost.failure
        else cost.model_copy(
            update={
                "seconds": middle[cost.precision],
                "ratio": TimeRatio(**vars(spreads[cost.precision])),
                "matmul_ratio": _product_ratio(cost.precision, speeds),
            }
        )
        for cost in costs
    ]


def _product_ratio(precision: str, speeds: Speeds) -> float | None:
    """The time of a large matrix product over FP32's; half weights have the products of fp16-mixed."""
    dtype = Precision(precision).autocast_dtype
    speed = next((speeds.get(name) for name, known in DTYPES.items() if known is dtype), None)
    return None if speed is None else 1 / speed


def _target(costs: Sequence[PrecisionCost]) -> PrecisionCost:
    """The precision for which advice is given: what ran out of memory, else the first in 16 bits."""
    ran_out = [cost for cost in costs if cost.out_of_memory]
    mixed = [cost for cost in costs if cost.precision != Precision.FP32 and not cost.failure]
    return (ran_out[-1:] or mixed[:1] or list(costs))[0]


def _device(device: torch.device) -> str:
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
