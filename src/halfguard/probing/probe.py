"""``probe``: train a job for some steps and report what its layers would do in FP16.

The run is in FP32 by default, where nothing overflows and every range is exact; FP16's behaviour is then
computed from the ranges, and some steps are also run in FP16, to find lines that leave its range inside and
outside of modules. In a 16-bit precision the run shows what really happens, up to the first failure.
On a CPU it follows CUDA's autocast rules.
"""

from __future__ import annotations

import math

from halfguard.errors import UsageError
from halfguard.precision_names import Precision
from halfguard.probing import findings
from halfguard.probing.findings import find_bad_gains
from halfguard.probing.ranges import (
    find_scale_window,
    make_layer_ranges,
    to_scale_range,
    total_by_module,
    without_repeated_outputs,
)
from halfguard.probing.training import (
    MAX_SCALE,
    MIN_SCALE,
    RunSetting,
    TrainingRun,
    audited_steps,
    train,
)
from halfguard.records.finding import Finding
from halfguard.records.ranges import ProbeReport
from halfguard.workload import Workload
from halfguard.workload.training import Advance


def probe(
    workload: Workload,
    *,
    steps: int = 20,
    precision: Precision | str = Precision.FP32,
    scale: float = 65536.0,
    allowed: float = 0.01,
    advance: Advance | None = None,
) -> ProbeReport:
    """Train a copy of ``workload`` for ``steps`` steps and report the range of every layer.

    ``scale`` is the loss scale in use. ``allowed`` is the share of a layer's gradients that may become 0
    before a scale counts as too low. ``advance`` is called after every step. The workload itself is not
    changed.
    """
    if steps < 1:
        raise UsageError(f"probe(steps={steps}): at least one step is needed.")
    if not MIN_SCALE <= scale <= MAX_SCALE or math.log2(scale) % 1:
        raise UsageError(
            f"probe(scale={scale:g}): a loss scale is a power of two between 1 and 2**24.",
            cure="torch.amp.GradScaler starts with 65536.",
        )
    fresh = workload.fresh()
    static = list(findings.of_gains(find_bad_gains(fresh.model)))  # known before the first step
    setting = RunSetting(Precision(precision), scale=scale)
    run = train(
        fresh,
        setting,
        steps,
        detail="range",
        diagnose=True,
        audited=audited_steps(steps),
        advance=advance,
    )
    raise_user_failure(run)
    return _report(workload, setting, run, allowed, static)


def raise_user_failure(run: TrainingRun) -> None:
    """Raise a UsageError if the user's own code raised: such a run has no ranges."""
    if run.failure is not None and run.failure.kind == "raised":
        raise UsageError(
            f"The workload raised at step {run.failure.step}: {run.failure.message}",
            cure="Run the workload without halfguard first, in FP32.",
        )


def _report(
    workload: Workload, setting: RunSetting, run: TrainingRun, allowed: float, static: list[Finding]
) -> ProbeReport:
    totals = without_repeated_outputs(total_by_module(run.trace, run.scales))
    window = find_scale_window(totals, allowed)
    layers = make_layer_ranges(totals, workload.model, window, setting.scale, allowed)
    scale_range = to_scale_range(window)
    found = [
        *findings.of_failure(run.failure, setting.precision),
        *findings.of_faults(run.faults, run.failure),
        *findings.of_layers(layers),
        *findings.of_scale_window(scale_range, layers),
        *findings.of_lost_gradients(layers, setting.scale, window),
        *static,
    ]
    return ProbeReport(
        precision=setting.precision,
        steps=len(run.losses),
        scale=setting.scale,
        best_scale=2.0**window.best if scale_range is None else scale_range.best,
        window=scale_range,
        losses=tuple(run.losses),
        layers=layers,
        findings=tuple(found),
    )
