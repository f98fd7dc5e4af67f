"""``probe``: run a job for some steps and say what its layers would do in FP16.

The run is in FP32 by default, where nothing overflows and every range is true; the questions about FP16
are then answered from the ranges. In a 16-bit precision it shows what really happens, under CUDA's rules
also on a CPU, until it breaks.
"""

from __future__ import annotations

import math

from halfguard.errors import UsageError
from halfguard.precision.modes import Precision
from halfguard.probing import findings
from halfguard.probing.forecast import forecast
from halfguard.probing.parameter_checks import bad_gains, strays, untrained
from halfguard.probing.ranges import as_scale_range, gather, layer_ranges, window_of, without_echoes
from halfguard.probing.training import CEILING, FLOOR, Advance, Run, Setting, train
from halfguard.records.finding import Finding
from halfguard.records.ranges import Forecast, LayerRange, ProbeReport
from halfguard.workload import Workload


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

    ``scale`` is the loss scale in use; ``allowed`` is the share of a layer's gradients that may vanish
    before a scale counts as too low; ``advance`` is called after every step. The workload itself is
    left as it was.
    """
    if steps < 1:
        raise UsageError(f"probe(steps={steps}): at least one step is needed.")
    if not FLOOR <= scale <= CEILING or math.log2(scale) % 1:
        raise UsageError(
            f"probe(scale={scale:g}): a loss scale is a power of two between 1 and 2**24.",
            cure="torch.amp.GradScaler starts with 65536.",
        )
    fresh = workload.fresh()
    first = [
        *findings.of_strays(strays(fresh.model, fresh.optimizer)),
        *findings.of_untrained(untrained(fresh.model, fresh.optimizer)),
        *findings.of_gains(bad_gains(fresh.model)),
    ]
    setting = Setting(Precision(precision), scale=scale)
    run = train(fresh, setting, steps, detail="range", diagnose=True, advance=advance)
    refuse_broken(run)
    return _report(workload, setting, run, allowed, first)


def refuse_broken(run: Run) -> None:
    """A model that raises has no ranges; that is its author's to cure."""
    if run.failure is not None and run.failure.kind == "raised":
        raise UsageError(
            f"The workload raised at step {run.failure.step}: {run.failure.message}",
            cure="Run it without halfguard first, in FP32.",
        )


def _report(
    workload: Workload, setting: Setting, run: Run, allowed: float, first: list[Finding]
) -> ProbeReport:
    sums = without_echoes(gather(run.trace, run.scales))
    window = window_of(sums, allowed)
    layers = layer_ranges(sums, workload.model, window, setting.scale, allowed)
    forecasts = tuple(_forecasts(layers))
    scale_range = as_scale_range(window)
    found = [
        *findings.of_failure(run.failure, setting.precision),
        *findings.of_layers(layers),
        *findings.of_window(scale_range, layers),
        *findings.of_forecasts(forecasts),
        *first,
    ]
    return ProbeReport(
        precision=setting.precision,
        steps=len(run.losses),
        scale=setting.scale,
        best_scale=2.0**window.best if scale_range is None else scale_range.best,
        window=scale_range,
        losses=tuple(run.losses),
        layers=layers,
        forecasts=forecasts,
        findings=tuple(found),
    )


def _forecasts(layers: tuple[LayerRange, ...]) -> list[Forecast]:
    """The announced overflows, soonest first."""
    found = []
    for layer in layers:
        ahead = forecast(layer.forward)
        if ahead is not None:
            values = {"steps": ahead.steps, "low": ahead.low, "high": ahead.high}
            found.append(Forecast(module=layer.module, doubling=ahead.doubling, **values))
    return sorted(found, key=lambda one: one.steps)
